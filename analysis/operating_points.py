"""Operating points with intervals: what the frontier is drawn from and the tables list."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.errors import ResultsError
from analysis.frontier import pareto_frontier
from analysis.labels import point_keys, point_labels
from analysis.resampling import Draws, draw_full
from analysis.sample_building import build_sample
from analysis.samples import SPEED_AXES, TaskSample


def operating_points(
    cells: pd.DataFrame,
    generations: pd.DataFrame,
    task: str | None = None,
    *,
    axis: str = "speedup",
    n_bootstrap: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Every operating point: `label`, `speed`, `quality`, 95 % intervals, frontier membership; AR first.

    Args and errors are those of `analysis.joint_vs_one_pass`.
    """
    if axis not in SPEED_AXES:
        raise ResultsError(f"Expected a speed axis among {', '.join(SPEED_AXES)}, got '{axis}'.")
    samples, _ = pooled_samples(cells, generations, task, axis)
    draws = draw_full(samples, axis, n_bootstrap, np.random.default_rng(seed))
    return describe_points(samples, axis, draws, one_pass_mask(samples[0].points))


def pooled_samples(
    cells: pd.DataFrame, generations: pd.DataFrame, task: str | None, axis: str
) -> tuple[list[TaskSample], pd.DataFrame]:
    """The samples of one task, or of all, cut to the points each of them measured; and what was cut."""
    tasks = sorted(cells["task"].unique()) if task is None else [task]
    if unknown := set(tasks) - set(cells["task"]):
        raise ResultsError(f"Expected a task among {sorted(cells['task'].unique())}, got {sorted(unknown)}.")
    samples = [build_sample(cells, generations, name) for name in tasks]
    labels = [dict(zip(point_keys(s.points), range(len(s.points)), strict=True)) for s in samples]
    known = [_measured(sample, axis) for sample in samples]
    complete = [
        key for key in labels[0]
        if all(key in label and ok[label[key]] for label, ok in zip(labels, known, strict=True))
    ]  # fmt: skip
    excluded = [_excluded(s, set(complete), ok) for s, ok in zip(samples, known, strict=True)]
    if len(complete) < 2 or "ar" not in complete[0]:
        raise ResultsError(
            f"Expected an AR reference and an operating point with speed and quality in each of {tasks}, "
            f"got {len(complete)} complete points: look at the failed cells, or choose one task."
        )
    cut = [s.select([label[key] for key in complete]) for s, label in zip(samples, labels, strict=True)]
    return cut, pd.concat([failed_cells(cells, tasks), *excluded], ignore_index=True)


def one_pass_mask(points: pd.DataFrame) -> NDArray[np.bool_]:
    """The points of the one-pass frontier: those with one pass, and AR."""
    mask: NDArray[np.bool_] = (points["effort_passes"] == 1).fillna(value=False).to_numpy(dtype=bool)
    return mask | (points["decoding"] == "ar").to_numpy(dtype=bool)


def describe_points(
    samples: Sequence[TaskSample], axis: str, draws: Draws, one_pass: NDArray[np.bool_]
) -> pd.DataFrame:
    """Knobs, values, intervals and frontier membership of every point of `pooled_samples`."""
    full = [s.measure(np.ones((1, len(s.prompts))), axis) for s in samples]
    speed, quality = (np.mean([pair[i][0] for pair in full], axis=0) for i in (0, 1))
    speed_low, speed_high = np.percentile(draws.speed, [2.5, 97.5], axis=0)
    quality_low, quality_high = np.percentile(draws.quality, [2.5, 97.5], axis=0)
    change_low, change_high = np.percentile(draws.quality - draws.quality[:, :1], [2.5, 97.5], axis=0)
    table = samples[0].points.assign(
        label=point_labels(samples[0].points),
        speed=speed, speed_low=speed_low, speed_high=speed_high,
        quality=quality, quality_low=quality_low, quality_high=quality_high,
        quality_change=quality - quality[0], quality_change_low=change_low, quality_change_high=change_high,
    )  # fmt: skip
    joint = pareto_frontier(table, "speed", "quality").points
    single = pareto_frontier(table[one_pass], "speed", "quality").points
    return table.assign(
        on_joint=table.index.isin(joint.index),
        on_one_pass=table.index.isin(single.index),
        duplicate=table.index.isin(joint.index[joint["duplicate"]]),
    )


def failed_cells(cells: pd.DataFrame, tasks: Sequence[str]) -> pd.DataFrame:
    """Failed cells of these tasks, with `task`, `label` and `reason`."""
    failed = cells[(cells["status"] != "ok") & cells["task"].isin(tasks)]
    return pd.DataFrame(
        {"task": failed["task"], "label": point_labels(failed), "reason": failed["error"].astype(object)}
    )


def _measured(sample: TaskSample, axis: str) -> NDArray[np.bool_]:
    speed, quality = sample.measure(np.ones((1, len(sample.prompts))), axis)
    known: NDArray[np.bool_] = np.isfinite(speed[0]) & np.isfinite(quality[0])
    return known


def _excluded(sample: TaskSample, complete: set[str], known: NDArray[np.bool_]) -> pd.DataFrame:
    keys, labels = point_keys(sample.points), point_labels(sample.points)
    rows = [
        {"task": sample.task, "label": label,
         "reason": "not measured on every task" if ok else "no speed or no quality"}
        for key, label, ok in zip(keys, labels, known, strict=True)
        if key not in complete
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["task", "label", "reason"])
