"""Does varying effort and leniency together widen the frontier, or is one pass enough?

The joint frontier contains the one-pass frontier, so on the data that chose both its hypervolume is never
smaller: a comparison there always "wins". The verdict therefore rests on a held-out comparison:

1. Prompts are split in two halves. A cell's speed noise between runs, which both halves share, is split as
   well: one half gets +z, the other -z, with z as wide as that noise (data fission), which leaves the two
   independent.
2. On one half, along each ray from the reference point, each side picks the operating point whose rectangle
   reaches furthest (along all rays together that is exactly the frontier and its hypervolume).
3. On the other half those picks are measured. Nothing is chosen there, so luck does not count.
4. The halves swap roles; 200 random splits are averaged.

The interval comes from resampling prompts (for all cells of a task together, so the pairing stays) and the
run noise.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.errors import ResultsError
from analysis.frontier import REFERENCE, hypervolume
from analysis.operating_points import describe_points, pooled_samples
from analysis.resampling import Draws, draw_full, draw_halves
from analysis.samples import SPEED_AXES, Array
from analysis.verdict import Estimate, Verdict, decide

_RAYS = 96
_SPLITS = 200
_CHUNK = 100
_MIN_PROMPTS = 4
_Z95 = 1.96


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
            cell, or fewer than 4 prompts.
    """
    if axis not in SPEED_AXES:
        raise ResultsError(f"Expected a speed axis among {', '.join(SPEED_AXES)}, got '{axis}'.")
    samples, excluded = pooled_samples(cells, generations, task, axis)
    fewest = min(len(sample.prompts) for sample in samples)
    one_pass = (samples[0].points["effort_passes"] == 1).fillna(value=False).to_numpy(dtype=bool)
    _check(fewest, one_pass)
    one_pass[0] = True
    rng = np.random.default_rng(seed)
    points = describe_points(samples, axis, draw_full(samples, axis, n_bootstrap, rng), one_pass)
    full = draw_full(samples, axis, n_bootstrap, rng)
    splits = _held_out(draw_halves(samples, axis, _SPLITS, rng, resample=False), one_pass)
    resampled = _held_out(draw_halves(samples, axis, n_bootstrap, rng, resample=True), one_pass)
    joint, single = splits.mean(axis=0)
    difference = _estimate(splits[:, 0] - splits[:, 1], resampled[:, 0] - resampled[:, 1])
    gain = _estimate(splits[:, 0] / splits[:, 1] - 1, resampled[:, 0] / resampled[:, 1] - 1)
    prompts, repeats = sum(len(s.prompts) for s in samples), min(s.repeats for s in samples)
    return Comparison(
        task=task,
        axis=axis,
        points=points,
        excluded=excluded,
        joint=_in_sample(points, full, np.ones_like(one_pass)),
        one_pass=_in_sample(points, full, one_pass),
        held_out_joint=float(joint),
        held_out_one_pass=float(single),
        difference=difference,
        gain=gain,
        verdict=decide(gain, float(joint), float(single), bool((~one_pass).any()), prompts, repeats),
        num_prompts=prompts,
        repeats=repeats,
        run_noise=max(sample.noise[axis] for sample in samples),
    )


def _check(fewest_prompts: int, one_pass: NDArray[np.bool_]) -> None:
    if fewest_prompts < _MIN_PROMPTS:
        raise ResultsError(
            f"Expected at least {_MIN_PROMPTS} prompts per task to compare frontiers, got {fewest_prompts}: "
            "measure more prompts."
        )
    if not one_pass.any():
        raise ResultsError(
            "Expected finished cells with one denoising pass as the baseline, got none: "
            "add `passes: 1` to the experiment."
        )


def _held_out(halves: tuple[Draws, Draws], one_pass: NDArray[np.bool_]) -> Array:
    """Held-out hypervolumes [resamples, (joint, one pass)], both halves having chosen once."""
    scale = np.array([np.nanmax(halves[0].speed), max(np.nanmax(halves[0].quality), 1e-12)])
    angles: Array = (np.arange(_RAYS, dtype=np.float64) + 0.5) * (np.pi / 2 / _RAYS)
    parts = []
    for start in range(0, len(halves[0].speed), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        first, second = (_reach_squared(h.speed[chunk], h.quality[chunk], scale, angles) for h in halves)
        sides = [_area(first, second, keep) for keep in (np.ones_like(one_pass), one_pass)]
        parts.append(np.stack(sides, axis=1))
    areas: Array = np.concatenate(parts) * scale.prod()
    return areas


def _reach_squared(speed: Array, quality: Array, scale: Array, angles: Array) -> Array:
    """How far each point's rectangle reaches along rays from REFERENCE, squared [resamples, points, rays]."""
    x = (speed - REFERENCE[0]) / scale[0]
    y = (quality - REFERENCE[1]) / scale[1]
    reach: Array = np.minimum(x[:, :, None] / np.cos(angles), y[:, :, None] / np.sin(angles)) ** 2
    return reach


def _area(first: Array, second: Array, keep: NDArray[np.bool_]) -> Array:
    """Area, in polar coordinates, of what is chosen on one half and measured on the other; both ways."""
    first, second = first[:, keep], second[:, keep]
    total = np.zeros(len(first))
    for chooser, measure in ((first, second), (second, first)):
        pick = chooser.argmax(axis=1)
        total += np.take_along_axis(measure, pick[:, None, :], axis=1)[:, 0].mean(axis=1)
    return total / 2 * (np.pi / 4)


def _in_sample(points: pd.DataFrame, draws: Draws, keep: NDArray[np.bool_]) -> Estimate:
    value = hypervolume(points.loc[keep, ["speed", "quality"]].to_numpy(dtype=np.float64))
    both = np.stack([draws.speed[:, keep], draws.quality[:, keep]], axis=2)
    low, high = np.percentile([hypervolume(values) for values in both], [2.5, 97.5])
    return Estimate(value, float(low), float(high))


def _estimate(splits: Array, resampled: Array) -> Estimate:
    """The mean over splits, with the spread of resampled data around it.

    A resample is split once, so its spread holds that of a single split, which the mean averages away: it is taken
    off (law of total variance), down to half the raw spread at most.
    """
    raw = float(np.var(resampled, ddof=1))
    width = _Z95 * max(raw - float(np.var(splits, ddof=1)), raw / 4) ** 0.5
    value = float(splits.mean())
    return Estimate(value, value - width, value + width)
