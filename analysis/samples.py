"""Per-prompt measurements of one task, lined up so that whole cells can be resampled by prompt.

A `TaskSample` holds operating points x prompts (repeats summed). Every cell decodes the same prompts, so one
set of prompt weights resamples all cells at once: differences between cells keep their pairing.
Speed is Σ tokens / Σ seconds of a request (at batch size 1 that is throughput), a speedup is that over the
AR reference decoded in the same cell. The AR point is everything AR decoding did, with a speedup of 1.
"""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Speed axes. The first two are ratios to the AR reference of the same cell: tokens/s, and answers/s.
SPEED_AXES = ("speedup", "answer_speedup", "tokens_per_s", "answers_per_s")
RELATIVE_AXES = ("speedup", "answer_speedup")


@dataclass(frozen=True)
class TaskSample:
    """One task under one condition: `points` (the AR point first), `prompts`, and sums [points, prompts]."""

    task: str
    points: pd.DataFrame
    prompts: list[str]
    sums: dict[str, Array]
    repeats: int
    noise: dict[str, tuple[float, str]]

    def select(self, rows: list[int]) -> "TaskSample":
        """The same sample with only these operating points, in this order."""
        return replace(
            self,
            points=self.points.iloc[rows].reset_index(drop=True),
            sums={name: values[rows] for name, values in self.sums.items()},
        )

    def measure(self, weights: Array, axis: str) -> tuple[Array, Array]:
        """Speed and quality [resamples, points] under prompt weights [resamples, prompts].

        Where a resample misses every prompt with a reference or a score, the full sample's value stands in.
        """
        full = np.ones((1, len(self.prompts)))
        speed, quality = self._speed(weights, axis), self.ratio("score", "scored", weights)
        return (
            np.where(np.isfinite(speed), speed, self._speed(full, axis)),
            np.where(np.isfinite(quality), quality, self.ratio("score", "scored", full)),
        )

    def ratio(self, over: str, under: str, weights: Array) -> Array:
        """Ratio of two sums [resamples, points]; NaN where there is nothing under it."""
        with np.errstate(divide="ignore", invalid="ignore"):
            result: Array = (weights @ self.sums[over].T) / (weights @ self.sums[under].T)
        return result

    def _speed(self, weights: Array, axis: str) -> Array:
        if axis == "tokens_per_s":
            return self.ratio("tokens", "seconds", weights)
        if axis == "answers_per_s":
            return self.ratio("answers", "seconds", weights)
        if axis == "answer_speedup":
            speed = self.ratio("paired_answers", "paired_seconds", weights)
            speed /= self.ratio("ar_answers", "ar_seconds", weights)
        else:
            speed = self.ratio("tokens", "seconds", weights) / self.ratio("ar_tokens", "ar_seconds", weights)
        speed[:, 0] = 1.0
        return speed
