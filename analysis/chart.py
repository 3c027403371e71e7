"""What both drawings of a frontier and its tables share: typed points, limits, ticks, staircases."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.estimate import Estimate

Line = list[tuple[float, float]]


@dataclass(frozen=True)
class Mark:
    """One operating point as it is drawn and listed.

    Args:
        label: its full name.
        knob: its leniency as short as it can be, "AR" for the AR point.
        change: its quality less that of AR decoding on the same prompts.
        rank: index of its number of passes among those of the chart, None for the AR point.
    """

    label: str
    knob: str
    rank: int | None
    passes: int | None
    lossless: bool
    speed: Estimate
    quality: Estimate
    change: Estimate
    on_joint: bool
    on_one_pass: bool
    duplicate: bool

    @property
    def is_ar(self) -> bool:
        """Plain decoding, no drafter."""
        return self.rank is None

    @property
    def on_front(self) -> bool:
        """On either frontier."""
        return self.on_joint or self.on_one_pass

    @property
    def in_focus(self) -> bool:
        """Drawn at full strength: on a frontier, or one of the two landmarks."""
        return self.on_front or self.is_ar or self.lossless


@dataclass(frozen=True)
class Limits:
    """The shown part of the plane, in data units."""

    left: float
    right: float
    bottom: float
    top: float


def marks(points: pd.DataFrame) -> list[Mark]:
    """The rows of `Comparison.points`, in their order."""
    ranks = pass_ranks(points)
    with_rule = points["leniency_rule"].nunique() > 1
    return [_mark(row, ranks, with_rule) for row in points.to_dict("records")]


def pass_ranks(points: pd.DataFrame) -> dict[int, int]:
    """Colour and marker index of each number of passes, fewest first."""
    return {int(passes): rank for rank, passes in enumerate(sorted(points["effort_passes"].dropna().unique()))}


def limits(drawn: Sequence[Mark]) -> Limits:
    """Limits that hold every point, and the intervals of those on a frontier, with some air around."""
    front = [mark for mark in drawn if mark.on_front]
    xs = [m.speed.value for m in drawn] + [end for m in front for end in m.speed[1:]]
    ys = [m.quality.value for m in drawn] + [end for m in front for end in m.quality[1:]]
    air_x = 0.05 * (max(xs) - min(xs)) or 0.1
    air_y = 0.07 * (max(ys) - min(ys)) or 0.05
    floor = 0.0 if min(ys) >= 0 else min(ys) - air_y
    return Limits(max(0.0, min(xs) - air_x), max(xs) + air_x, max(floor, min(ys) - air_y), max(ys) + air_y)


def ticks(low: float, high: float, count: int = 6) -> list[float]:
    """At most `count` + 1 round numbers within [low, high]."""
    values = MaxNLocator(nbins=count, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    return [float(value) for value in values if low <= value <= high]


def staircase(corners: Sequence[Mark], box: Limits) -> Line:
    """The edge of the area that the points of a frontier dominate, from the left edge to the bottom edge."""
    xy = sorted({(mark.speed.value, mark.quality.value) for mark in corners})
    line: Line = [(box.left, xy[0][1])]
    for x, y in xy:
        line += [(line[-1][0], y), (x, y)]
    return [*line, (line[-1][0], box.bottom)]


def _mark(row: dict[Hashable, Any], ranks: dict[int, int], with_rule: bool) -> Mark:
    ar = row["decoding"] == "ar"
    passes = None if ar else int(row["effort_passes"])
    return Mark(
        label=row["label"],
        knob="AR" if ar else _knob(row["leniency_rule"], row["leniency_value"], with_rule),
        rank=None if passes is None else ranks[passes],
        passes=passes,
        lossless=bool(row["lossless"]) and not ar,
        speed=Estimate(row["speed"], row["speed_low"], row["speed_high"]),
        quality=Estimate(row["quality"], row["quality_low"], row["quality_high"]),
        change=Estimate(row["quality_change"], row["quality_change_low"], row["quality_change_high"]),
        on_joint=row["on_joint"],
        on_one_pass=row["on_one_pass"],
        duplicate=row["duplicate"],
    )


def _knob(rule: str, value: float, with_rule: bool) -> str:
    number = "" if math.isnan(value) else f"{value:.3g}"
    return f"{rule} {number}".strip() if with_rule or not number else number
