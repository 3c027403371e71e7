"""How much a cell's speed varies between runs of the same work: the noise that prompts cannot show.

All prompts of a cell share the machine's mood of those minutes, so resampling prompts misses it. It is read
off, in this order: the spread between repeats of a cell; the spread between cells of the cost of a
verifier forward over the cost of an AR token of the same cell (the same work in every cell with the same
block length); the spread of the AR references' speed between cells (too large where both sides drift
together).
"""

from typing import Any

import numpy as np
import pandas as pd

from analysis.labels import point_keys
from analysis.schema import POINT_COLUMNS

_MIN_RUNS = 3


def run_noise(rows: pd.DataFrame, relative: bool) -> tuple[float, str]:
    """Standard deviation of the log speed of one run, and where it was read off.

    Args:
        rows: generations of one task, merged with the knobs of their cells.
        relative: the speed is a ratio to the AR reference of the same cell, so shared drift cancels.
    """
    runs = _runs(rows)
    speed = runs["speed"] / runs["ar_speed"] if relative else runs["speed"]
    spread = _spread(speed, pd.Series(point_keys(runs), index=runs.index))
    if spread is not None:
        return spread, "repeats"
    if relative:
        spread = _spread(runs["verify_cost"] * runs["ar_speed"], runs["effort_block"], _MIN_RUNS)
        if spread is not None:
            return spread, "cost of a verifier forward over an AR token, between cells"
    spread = _spread(runs["ar_speed"], pd.Series(0, index=runs.index), _MIN_RUNS)
    return (0.0, "unknown") if spread is None else (spread, "AR references, between cells")


def _runs(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per speculative cell: speed, AR speed, seconds per verifier forward."""
    names = ["completion_tokens", "latency_s", "ar_completion_tokens", "ar_latency_s",
             "verify_time_s", "verifier_forwards"]  # fmt: skip
    drafted = rows[rows["decoding"] == "speculative"]
    numbers = drafted[names].astype("float64").assign(cell_id=drafted["cell_id"])
    sums = numbers.groupby("cell_id").sum(min_count=1)
    knobs = drafted.groupby("cell_id")[list(POINT_COLUMNS)].first()
    return knobs.assign(
        speed=sums["completion_tokens"] / sums["latency_s"],
        ar_speed=sums["ar_completion_tokens"] / sums["ar_latency_s"],
        verify_cost=sums["verify_time_s"] / sums["verifier_forwards"],
    )


def _spread(values: "pd.Series[float]", groups: "pd.Series[Any]", least: int = 2) -> float | None:
    """Pooled standard deviation of the logarithm within groups; None where no group has `least` values."""
    known = pd.Series(np.log(values[values > 0]))
    grouped = known.groupby(groups[known.index])
    sizes = grouped.transform("size")
    kept = known[sizes >= least]
    freedom = len(kept) - groups[kept.index].nunique()
    if freedom <= 0:
        return None
    deviations = kept - kept.groupby(groups[kept.index]).transform("mean")
    return float(np.sqrt((deviations**2).sum() / freedom))
