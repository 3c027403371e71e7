"""Areas of frontiers whose points were chosen on other data than measures them.

Choosing the best of many noisy points and quoting the numbers that made them best flatters, and the more
points there are to choose from, the more. So:

1. Prompts are split in two halves. A cell's speed noise between runs, which both halves share, is split as
   well: one half gets +z, the other -z, with z as wide as that noise (data fission), which leaves the two
   independent.
2. On one half, along each ray from the reference point, each side picks the operating point whose rectangle
   reaches furthest (along all rays together that is exactly the frontier and its hypervolume).
3. On the other half those picks are measured. Nothing is chosen there, so luck does not count.
4. The halves swap roles, and many random splits are averaged.

The interval comes from resampling prompts (for all cells of a task together, so the pairing stays) and the
run noise.
"""

import numpy as np
from numpy.typing import NDArray

from analysis.estimate import Estimate
from analysis.frontier import REFERENCE
from analysis.resampling import Draws
from analysis.samples import Array

_RAYS = 96
_CHUNK = 100
_Z95 = 1.96


def held_out_areas(halves: tuple[Draws, Draws], one_pass: NDArray[np.bool_], scale: Array) -> Array:
    """Held-out hypervolumes [resamples, (joint, one pass)], both halves having chosen once."""
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
    x = np.maximum(speed - REFERENCE[0], 0.0) / scale[0]
    y = np.maximum(quality - REFERENCE[1], 0.0) / scale[1]
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


def linear_gain(areas: Array, splits: Array) -> Array:
    """Relative gain of each row of areas, linearised around the splits' mean: finite whatever one row holds."""
    joint, single = splits.mean(axis=0)
    gain: Array = joint / single - 1 + (areas[:, 0] - joint / single * areas[:, 1]) / single
    return gain


def held_out_estimate(splits: Array, resampled: Array) -> Estimate:
    """The mean over splits, with the spread of resampled data around it.

    A resample is split once, so its spread holds that of a single split, which the mean averages away: it is taken
    off (law of total variance), down to half the raw spread at most.
    """
    raw = float(np.var(resampled, ddof=1))
    width = _Z95 * max(raw - float(np.var(splits, ddof=1)), raw / 4) ** 0.5
    value = float(splits.mean())
    return Estimate(value, value - width, value + width)
