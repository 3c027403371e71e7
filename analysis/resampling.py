"""Random draws of every operating point's speed and quality: resampled prompts, plus noise between runs."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from analysis.samples import Array, TaskSample


class Draws(NamedTuple):
    """Speed and quality [resamples, points], the mean over the tasks."""

    speed: Array
    quality: Array


def draw_full(samples: Sequence[TaskSample], axis: str, size: int, rng: np.random.Generator) -> Draws:
    """Bootstrap draws: prompts with replacement, the same for every cell of a task; run noise on speed."""
    drawn = []
    for sample in samples:
        count = len(sample.prompts)
        weights = rng.multinomial(count, np.full(count, 1 / count), size=size).astype(np.float64)
        speed, quality = sample.measure(weights, axis)
        drawn.append((speed * np.exp(_noise(sample, axis, size, rng)), quality))
    return _mean(drawn)


def draw_halves(
    samples: Sequence[TaskSample], axis: str, size: int, rng: np.random.Generator, *, resample: bool
) -> tuple[Draws, Draws]:
    """Two halves of the prompts whose noise is independent, `size` times.

    Args:
        resample: also draw each half's prompts with replacement and give the cells fresh run noise, for the
            spread of an estimate; otherwise only the splits are random, for the estimate itself.
    """
    first: list[tuple[Array, Array]] = []
    second: list[tuple[Array, Array]] = []
    for sample in samples:
        weights = _half_weights(len(sample.prompts), size, rng, resample)
        split = _noise(sample, axis, size, rng)
        fresh = _noise(sample, axis, size, rng) if resample else np.zeros_like(split)
        for half, weight, noise in ((first, weights[0], split), (second, weights[1], -split)):
            speed, quality = sample.measure(weight, axis)
            half.append((speed * np.exp(fresh + noise), quality))
    return _mean(first), _mean(second)


def _half_weights(count: int, size: int, rng: np.random.Generator, resample: bool) -> tuple[Array, Array]:
    order = rng.permuted(np.tile(np.arange(count), (size, 1)), axis=1)
    halves = (order[:, : count // 2], order[:, count // 2 :])
    weights = []
    for members in halves:
        drawn = members
        if resample:
            drawn = np.take_along_axis(members, rng.integers(0, members.shape[1], members.shape), axis=1)
        flat = np.bincount((np.arange(size)[:, None] * count + drawn).ravel(), minlength=size * count)
        weights.append(flat.reshape(size, count).astype(np.float64))
    return weights[0], weights[1]


def _noise(sample: TaskSample, axis: str, size: int, rng: np.random.Generator) -> Array:
    """Noise of the log speed between runs, mean over repeats [resamples, points]; none for the AR point."""
    width = sample.noise[axis][0] / np.sqrt(sample.repeats)
    noise: Array = rng.normal(0.0, 1.0, (size, len(sample.points))) * width
    noise[:, 0] = 0.0
    return noise


def _mean(drawn: list[tuple[Array, Array]]) -> Draws:
    return Draws(np.mean([speed for speed, _ in drawn], axis=0), np.mean([quality for _, quality in drawn], axis=0))
