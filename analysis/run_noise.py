"""How much a cell's speed varies between runs of the same work: the noise that prompts cannot show.

All prompts of a cell share the machine's mood of those minutes, so resampling prompts misses it. It is read
off, in this order:

1. the spread between repeats of a cell;
2. the verifier's time, in units of the same cell's AR tokens, around a straight line in its forwards (every
   cell with the same block length does the same work per forward, and the same prefill before);
3. the spread of the AR references' speed between cells (too large where both sides drift together).
"""

from typing import Any

import numpy as np
import pandas as pd

from analysis.labels import point_keys
from analysis.schema import POINT_COLUMNS

_MIN_RUNS = 4


def run_noise(rows: pd.DataFrame, relative: bool) -> tuple[float, str]:
    """Standard deviation of the log speed of one run, and where it was read off.

    Args:
        rows: generations of one task, merged with the knobs of their cells.
        relative: the speed is a ratio to the AR reference of the same cell, so shared drift cancels.
    """
    runs = _runs(rows)
    speed = runs["speed"] / runs["ar_speed"] if relative else runs["speed"]
    spread = _spread(speed, pd.Series(point_keys(runs), index=runs.index), least=2)
    if spread is not None:
        return spread, "spread between repeats"
    spread = _verifier_spread(runs) if relative else None
    if spread is not None:
        return spread, "verifier’s time per forward, against AR decoding in the same cell"
    spread = _spread(runs["ar_speed"], pd.Series(0, index=runs.index), least=_MIN_RUNS)
    return (0.0, "unknown") if spread is None else (spread, "spread of the AR references between cells")


def _runs(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per speculative cell: its knobs, speed, AR speed, verifier's time and forwards."""
    names = ["completion_tokens", "latency_s", "ar_completion_tokens", "ar_latency_s",
             "verify_time_s", "verifier_forwards"]  # fmt: skip
    drafted = rows[rows["decoding"] == "speculative"]
    numbers = drafted[names].astype("float64").assign(cell_id=drafted["cell_id"])
    sums = numbers.groupby("cell_id").sum(min_count=1)
    knobs = drafted.groupby("cell_id")[list(POINT_COLUMNS)].first()
    return knobs.assign(
        speed=sums["completion_tokens"] / sums["latency_s"],
        ar_speed=sums["ar_completion_tokens"] / sums["ar_latency_s"],
        verify_s=sums["verify_time_s"],
        forwards=sums["verifier_forwards"],
    )


def _spread(values: "pd.Series[float]", groups: "pd.Series[Any]", least: int) -> float | None:
    """Pooled standard deviation of the logarithm within groups; None where no group has `least` values."""
    known = pd.Series(np.log(values[values > 0]))
    sizes = known.groupby(groups[known.index]).transform("size")
    kept = known[sizes >= least]
    freedom = len(kept) - groups[kept.index].nunique()
    if freedom <= 0:
        return None
    deviations = kept - kept.groupby(groups[kept.index]).transform("mean")
    return float(np.sqrt((deviations**2).sum() / freedom))


def _verifier_spread(runs: pd.DataFrame) -> float | None:
    """Pooled relative deviation of the verifier's time from `a * forwards + b`, one line per block length."""
    squares, freedom = 0.0, 0
    for _, group in runs.groupby("effort_block"):
        time = (group["verify_s"] * group["ar_speed"]).to_numpy(dtype=np.float64)
        forwards = group["forwards"].to_numpy(dtype=np.float64)
        known = (time > 0) & (forwards > 0)
        if known.sum() < _MIN_RUNS:
            continue
        terms = np.stack([forwards[known], np.ones(known.sum())], axis=1) / time[known, None]
        line = np.linalg.lstsq(terms, np.ones(len(terms)), rcond=None)[0]
        squares += float(((terms @ line - 1) ** 2).sum())
        freedom += len(terms) - 2
    return float(np.sqrt(squares / freedom)) if freedom else None
