"""The Pareto frontier of (speed, quality), both maximised, and its hypervolume.

A point is on the frontier unless another is at least as good in both and better in one. The hypervolume is
the area a frontier dominates, measured from `REFERENCE` = (speed 0, quality 0): the same reference for every
frontier, so areas compare. Divided by the AR decoder's quality it reads as a speedup: plain decoding covers
1.0 x its quality, a lossless decoder that is twice as fast covers 2.0 x that quality.
"""

from dataclasses import dataclass

import moocore
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.errors import ResultsError

REFERENCE = (0.0, 0.0)


@dataclass(frozen=True)
class Frontier:
    """The frontier of a table of points.

    Args:
        points: the rows on the frontier, slowest first, with a column `duplicate` that is True where another
            row has exactly the same speed and quality (both are kept).
        excluded: the rows whose speed or quality is missing, with a column `reason`.
    """

    points: pd.DataFrame
    excluded: pd.DataFrame


def pareto_frontier(points: pd.DataFrame, speed: str = "speedup", quality: str = "quality") -> Frontier:
    """The rows of `points` that no other row dominates in columns `speed` and `quality`.

    Raises:
        ResultsError: a column is not there, or has not one number in it.
    """
    values = _values(points, speed, quality)
    known = np.isfinite(values).all(axis=1)
    excluded = points[~known].assign(reason=_reasons(values[~known], speed, quality))
    if not known.any():
        raise ResultsError(
            f"Expected at least one row with both {speed} and {quality}, got none of {len(points)}: "
            "check that the cells measured both."
        )
    kept = points[known].assign(duplicate=_duplicates(values[known]))
    best = kept[moocore.is_nondominated(values[known], maximise=True, keep_weakly=True)]
    return Frontier(points=best.sort_values([speed, quality], ascending=[True, False]), excluded=excluded)


def hypervolume(values: NDArray[np.float64]) -> float:
    """Area dominated by points [N, 2] of (speed, quality), from `REFERENCE`; in units of speed x quality."""
    return float(moocore.hypervolume(values, ref=REFERENCE, maximise=True)) if len(values) else 0.0


def _values(points: pd.DataFrame, speed: str, quality: str) -> NDArray[np.float64]:
    for name in (speed, quality):
        if name not in points:
            raise ResultsError(f"Expected a column '{name}', got {list(points.columns)}: choose one of these.")
    values = points[[speed, quality]].to_numpy(dtype=np.float64, na_value=np.nan)
    for column, name in zip(values.T, (speed, quality), strict=True):
        if not np.isfinite(column).any():
            raise ResultsError(
                f"Expected numbers in '{name}', got none in {len(points)} rows: "
                "check that the cells measured it, or choose another column."
            )
    return values


def _reasons(values: NDArray[np.float64], speed: str, quality: str) -> list[str]:
    names = np.array([speed, quality])
    return ["no " + " and no ".join(names[~np.isfinite(row)]) for row in values]


def _duplicates(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    _, inverse, counts = np.unique(values, axis=0, return_inverse=True, return_counts=True)
    repeated: NDArray[np.bool_] = counts[inverse.reshape(-1)] > 1
    return repeated
