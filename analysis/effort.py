"""Does a second denoising pass pay? Lossless points of one task against its one-pass point.

A pass pays if the acceptance length grows by more than a round's time does; at leniency 0 the output is the
same whatever the passes, so speed is all there is to compare.
"""

from dataclasses import dataclass

import numpy as np

from analysis.estimate import Estimate
from analysis.formatting import change_text, interval_text
from analysis.labels import point_labels
from analysis.samples import Array, TaskSample

_RESAMPLES = 1000
#: An acceptance length that changes by less than this, whatever the passes, is called flat.
FLAT = 0.02


@dataclass(frozen=True)
class EffortRow:
    """One lossless point.

    Args:
        length: mean acceptance length, token weighted, in tokens (bonus counted).
        round_ms: time of a draft-verify round.
        draft_share: drafter's share of the decoding time.
        length_change, round_change, speed_change: relative to the one-pass point; None for that point itself.
    """

    label: str
    passes: int
    length: Estimate
    round_ms: float
    draft_share: float
    speedup: Estimate
    length_change: Estimate | None
    round_change: float | None
    speed_change: Estimate | None

    @property
    def pays(self) -> str:
        """Whether the extra passes are worth their time: 'yes', 'no', or 'not measurable'."""
        if self.speed_change is None:
            return "baseline"
        if self.speed_change.low > 0:
            return "yes"
        return "no" if self.speed_change.high < 0 else "not measurable"


def effort_rows(sample: TaskSample, seed: int = 0) -> list[EffortRow]:
    """The lossless points of a task, fewest passes first; empty where it has no lossless one-pass point."""
    points = sample.points
    chosen: list[int] = np.flatnonzero(points["lossless"] & (points["decoding"] == "speculative")).tolist()
    passes = points["effort_passes"].to_numpy(dtype=np.float64, na_value=np.nan)
    order = sorted(chosen, key=lambda i: (passes[i], points["effort_block"].iloc[i]))
    if not order or passes[order[0]] != 1:
        return []
    rng = np.random.default_rng(seed)
    count = len(sample.prompts)
    drawn = rng.multinomial(count, np.full(count, 1 / count), size=_RESAMPLES).astype(np.float64)
    weights = np.concatenate([np.ones((1, count)), drawn])
    length = 1 + sample.ratio("accepted", "rounds", weights)
    width = sample.noise["speedup"][0] / np.sqrt(sample.repeats)
    noise = rng.normal(0.0, 1.0, length.shape) * width
    noise[0] = 0.0
    speed = sample.measure(weights, "speedup")[0] * np.exp(noise)
    labels = point_labels(points.iloc[order], leniency=False)
    return [
        _row(sample, i, _baseline(sample, order, i), label, length, speed)
        for i, label in zip(order, labels, strict=True)
    ]


def effort_sentence(rows: list[EffortRow]) -> str:
    """What more passes than one bring to a task, with numbers."""
    more = [row for row in rows if row.length_change is not None]
    if not more:
        return "only one pass was measured."
    best = max(more, key=lambda row: row.speed_change.value if row.speed_change else 0.0)
    longest = max(more, key=lambda row: row.length_change.value if row.length_change else 0.0)
    grown = longest.length_change or Estimate(0.0, 0.0, 0.0)
    gain = best.speed_change or Estimate(0.0, 0.0, 0.0)
    if all(abs(row.length_change.value) < FLAT for row in more if row.length_change):
        text = f"the effort axis is flat: acceptance length {change_text(grown.value)} at most"
    else:
        text = f"acceptance length {change_text(grown.value)} at {longest.label}"
    text += f" (95 % interval {interval_text(grown)}); "
    speed = f"{change_text(gain.value)} speed at {best.label} ({interval_text(gain)})."
    if best.pays == "yes":
        return f"{text}it pays: {speed}"
    if best.pays == "no":
        return f"{text}no further pass pays: at best {speed}"
    return f"{text}no gain in speed is measurable: at best {speed}"


def _baseline(sample: TaskSample, order: list[int], index: int) -> int:
    """The one-pass point to compare with: of the same block length where there is one."""
    points = sample.points
    same = [i for i in order if points["effort_passes"].iloc[i] == 1
            and points["effort_block"].iloc[i] == points["effort_block"].iloc[index]]  # fmt: skip
    return same[0] if same else order[0]


def _row(sample: TaskSample, i: int, base: int, label: str, length: Array, speed: Array) -> EffortRow:
    full = np.ones((1, len(sample.prompts)))
    round_s = sample.ratio("seconds", "rounds", full)[0]
    passes = int(sample.points["effort_passes"].iloc[i])
    first = passes == 1
    return EffortRow(
        label=label,
        passes=passes,
        length=_estimate(length[:, i]),
        round_ms=float(1000 * round_s[i]),
        draft_share=float(sample.ratio("draft_seconds", "seconds", full)[0, i]),
        speedup=_estimate(speed[:, i]),
        length_change=None if first else _estimate(length[:, i] / length[:, base] - 1),
        round_change=None if first else float(round_s[i] / round_s[base] - 1),
        speed_change=None if first else _estimate(speed[:, i] / speed[:, base] - 1),
    )


def _estimate(values: Array) -> Estimate:
    """The full sample's value (the first) with the percentiles of the resamples."""
    low, high = np.nanpercentile(values[1:], [2.5, 97.5])
    return Estimate(float(values[0]), float(low), float(high))
