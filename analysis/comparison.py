"""Does varying effort and leniency together widen the frontier, or is one pass enough?

The joint frontier contains the one-pass frontier, so on the data that chose both it never has less area and a
comparison there always "wins". The verdict rests on a held-out comparison instead: see `analysis.held_out`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.errors import ResultsError
from analysis.estimate import Estimate
from analysis.frontier import REFERENCE, hypervolume
from analysis.held_out import held_out_areas, held_out_estimate, linear_gain
from analysis.operating_points import describe_points, one_pass_mask, pooled_samples
from analysis.resampling import Draws, draw_full, draw_halves
from analysis.samples import SPEED_AXES, Array, TaskSample
from analysis.verdict import Verdict, decide

_SPLITS = 200
_MIN_PROMPTS = 4


@dataclass(frozen=True)
class Comparison:
    """The joint frontier against the one-pass frontier (both with the AR point) of a task, or over tasks.

    Args:
        task: the task, None for the mean over tasks.
        axis: the speed axis (see `analysis.samples.SPEED_AXES`).
        points: every operating point with speed, quality, 95 % intervals (`*_low`, `*_high`), `label`, and
            whether it is `on_joint`, `on_one_pass`, a `duplicate`; the AR point first.
        excluded: what was left out, with `reason`.
        joint, one_pass: hypervolumes on all the data, with intervals; the first is never smaller.
        held_out_joint, held_out_one_pass: hypervolumes of points chosen on other prompts.
        difference: held-out joint - one pass, with its interval; unbiased, may be negative.
        gain: `difference` / held-out one pass.
        run_noise: largest spread of log speed between runs among the tasks, and where it was read off.
    """

    task: str | None
    axis: str
    points: pd.DataFrame
    excluded: pd.DataFrame
    joint: Estimate
    one_pass: Estimate
    held_out_joint: float
    held_out_one_pass: float
    difference: Estimate
    gain: Estimate
    verdict: Verdict
    num_prompts: int
    repeats: int
    run_noise: tuple[float, str]


def joint_vs_one_pass(
    cells: pd.DataFrame,
    generations: pd.DataFrame,
    task: str | None = None,
    *,
    axis: str = "speedup",
    n_bootstrap: int = 1000,
    seed: int = 0,
) -> Comparison:
    """Compare the frontier over all cells with that over cells of one denoising pass.

    Args:
        cells, generations: as loaded; cells of one condition (see `analysis.split_conditions`).
        task: one task; None takes the mean over tasks of speed and of quality for each operating point.
        axis: "speedup" (tokens/s over AR), "answer_speedup" (answers/s over AR, which also sees the length of
            the output), "tokens_per_s" or "answers_per_s".
        n_bootstrap: resamples behind every interval.
        seed: of the resampling.

    Raises:
        ResultsError: unknown axis or task, several conditions, no point measured on all tasks, no one-pass
            cell, fewer than 4 prompts, or no quality above 0.
    """
    if axis not in SPEED_AXES:
        raise ResultsError(f"Expected a speed axis among {', '.join(SPEED_AXES)}, got '{axis}'.")
    samples, excluded = pooled_samples(cells, generations, task, axis)
    one_pass = one_pass_mask(samples[0].points)
    _check(samples, one_pass)
    rng = np.random.default_rng(seed)
    full = draw_full(samples, axis, n_bootstrap, rng)
    points = describe_points(samples, axis, full, one_pass)
    splits, resampled = (
        held_out_areas(draw_halves(samples, axis, size, rng, resample=resample), one_pass, _scale(points))
        for size, resample in ((_SPLITS, False), (n_bootstrap, True))
    )
    joint, single = (float(area) for area in splits.mean(axis=0))
    gain = held_out_estimate(linear_gain(splits, splits), linear_gain(resampled, splits))
    prompts, repeats = sum(len(s.prompts) for s in samples), min(s.repeats for s in samples)
    return Comparison(
        task=task,
        axis=axis,
        points=points,
        excluded=excluded,
        joint=_in_sample(points, full, np.ones_like(one_pass)),
        one_pass=_in_sample(points, full, one_pass),
        held_out_joint=joint,
        held_out_one_pass=single,
        difference=held_out_estimate(splits[:, 0] - splits[:, 1], resampled[:, 0] - resampled[:, 1]),
        gain=gain,
        verdict=decide(gain, joint, single, bool((~one_pass).any()), prompts, repeats),
        num_prompts=prompts,
        repeats=repeats,
        run_noise=max(sample.noise[axis] for sample in samples),
    )


def _check(samples: Sequence[TaskSample], one_pass: NDArray[np.bool_]) -> None:
    fewest = min(len(sample.prompts) for sample in samples)
    if fewest < _MIN_PROMPTS:
        raise ResultsError(
            f"Expected at least {_MIN_PROMPTS} prompts per task to compare frontiers, got {fewest}: "
            "measure more prompts."
        )
    if not one_pass[1:].any():
        raise ResultsError(
            "Expected finished cells with one denoising pass as the baseline, got none: "
            "add `passes: 1` to the experiment."
        )


def _scale(points: pd.DataFrame) -> Array:
    """Largest speed and quality; angles of rays are measured in these units."""
    scale: Array = points[["speed", "quality"]].max().to_numpy(dtype=np.float64)
    if scale[1] <= REFERENCE[1]:
        raise ResultsError(f"Expected a quality above {REFERENCE[1]:g}, got none: check the task's scorer.")
    return scale


def _in_sample(points: pd.DataFrame, draws: Draws, keep: NDArray[np.bool_]) -> Estimate:
    value = hypervolume(points.loc[keep, ["speed", "quality"]].to_numpy(dtype=np.float64))
    both = np.stack([draws.speed[:, keep], draws.quality[:, keep]], axis=2)
    low, high = np.percentile([hypervolume(values) for values in both], [2.5, 97.5])
    return Estimate(value, float(low), float(high))
