"""From result tables to a `TaskSample`: choose the cells, line up prompts, add up repeats."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.errors import ResultsError
from analysis.run_noise import run_noise
from analysis.samples import RELATIVE_AXES, SPEED_AXES, Array, TaskSample
from analysis.schema import CONDITION_COLUMNS, POINT_COLUMNS

_SUMS = (
    "tokens", "seconds", "answers", "ar_tokens", "ar_seconds", "ar_answers", "paired_seconds", "paired_answers",
    "paired_tokens", "paired_ar_tokens", "score", "scored", "rounds", "accepted", "draft_seconds",
    "verify_seconds",
)  # fmt: skip


def split_conditions(cells: pd.DataFrame) -> list[pd.DataFrame]:
    """The finished cells in groups that agree in every circumstance (models, temperature, device ...).

    AR cells have no drafter; they join every group that agrees in the rest.
    """
    done = cells[cells["status"] == "ok"]
    drafted = done[done["decoding"] == "speculative"]
    groups = []
    for _, group in drafted.groupby(list(CONDITION_COLUMNS), dropna=False, sort=False):
        shared = [name for name in CONDITION_COLUMNS if name != "drafter"]
        alone = done[done["decoding"] == "ar"]
        same = (alone[shared].astype(object).fillna("") == group[shared].astype(object).fillna("").iloc[0]).all(axis=1)
        groups.append(pd.concat([alone[same], group]))
    return groups


def build_sample(cells: pd.DataFrame, generations: pd.DataFrame, task: str) -> TaskSample:
    """Line up one task's prompts over its operating points.

    Args:
        cells: cells of one condition (see `split_conditions`); failed and superseded ones are ignored.
        generations: as from `load_generations`.
        task: the task.

    Raises:
        ResultsError: the cells differ in their condition, or the task has no finished speculative cell.
    """
    chosen = latest_cells(cells[(cells["task"] == task) & (cells["status"] == "ok")])
    if not (chosen["decoding"] == "speculative").any():
        raise ResultsError(f"Expected finished speculative cells of task '{task}', got none: run them first.")
    _check_one_condition(chosen)
    rows = _rows(chosen, generations)
    points = chosen[chosen["decoding"] == "speculative"][[*POINT_COLUMNS, "lossless"]].drop_duplicates()
    points = points.sort_values(list(POINT_COLUMNS)).reset_index(drop=True)
    numbered = points[list(POINT_COLUMNS)].assign(point=np.arange(len(points)))
    rows = rows.merge(numbered, on=list(POINT_COLUMNS), how="left")
    prompts = sorted(rows["prompt_id"].unique())
    sums = _sums(rows, len(points), prompts)
    ar = pd.DataFrame([dict.fromkeys(POINT_COLUMNS) | {"decoding": "ar", "lossless": True}])
    return TaskSample(
        task=task,
        points=pd.concat([ar.astype(points.dtypes), points], ignore_index=True),
        prompts=prompts,
        sums=sums,
        repeats=int(chosen["repeat"].nunique()),
        noise={axis: run_noise(rows, relative=axis in RELATIVE_AXES) for axis in SPEED_AXES},
    )


def latest_cells(cells: pd.DataFrame) -> pd.DataFrame:
    """Of cells that measured the same thing (by different code versions, say), only the newest."""
    keys = ["task", "repeat", *CONDITION_COLUMNS, *POINT_COLUMNS]
    return cells.sort_values("created_at").drop_duplicates(keys, keep="last")


def _check_one_condition(cells: pd.DataFrame) -> None:
    drafted = cells[cells["decoding"] == "speculative"]
    for name in CONDITION_COLUMNS:
        values = drafted[name].astype(object).where(drafted[name].notna(), None).unique()
        if len(values) > 1:
            raise ResultsError(
                f"Expected cells measured under one condition, got {name} = {', '.join(map(str, values))}: "
                f"select one, for example with `analysis.split_conditions(cells)`."
            )


def _rows(cells: pd.DataFrame, generations: pd.DataFrame) -> pd.DataFrame:
    keys = ["cell_id", "repeat", "lossless", *POINT_COLUMNS]
    rows = generations.drop(columns=["task", "repeat"]).merge(cells[keys], on="cell_id")
    return rows[rows["finish_reason"] != "error"]


def _sums(rows: pd.DataFrame, num_points: int, prompts: list[str]) -> dict[str, Array]:
    """Sums over repeats [1 + points, prompts]; index 0 is the AR point."""
    columns = _columns(rows)
    prompt = pd.Categorical(rows["prompt_id"], categories=prompts).codes
    drafted = (rows["decoding"] == "speculative").to_numpy()
    sums = {name: np.zeros((1 + num_points, len(prompts))) for name in _SUMS}
    place = (rows.loc[drafted, "point"].to_numpy(dtype=int) + 1, prompt[drafted])
    for name in _SUMS:
        np.add.at(sums[name], place, columns[name][drafted])
    _fill_ar_point(sums, columns, rows, drafted, prompt)
    # A prompt counts once in the quality, however often it was scored.
    sums["score"] /= np.maximum(sums["scored"], 1)
    sums["scored"] = np.minimum(sums["scored"], 1)
    return sums


def _fill_ar_point(
    sums: dict[str, Array],
    columns: dict[str, Array],
    rows: pd.DataFrame,
    drafted: NDArray[np.bool_],
    prompt: NDArray[np.int8],
) -> None:
    """The AR point: references and AR cells together; a prompt AR never scored takes the lossless score."""
    for name in ("tokens", "seconds", "answers"):
        np.add.at(sums[name][0], prompt, columns[f"ar_{name}"])
        np.add.at(sums[name][0], prompt[~drafted], columns[name][~drafted])
    ar_score = rows["ar_score"].to_numpy(dtype=np.float64, na_value=np.nan)
    for scores, chosen in ((ar_score, drafted), (_number(rows, "score"), ~drafted)):
        known = chosen & np.isfinite(scores)
        np.add.at(sums["score"][0], prompt[known], scores[known])
        np.add.at(sums["scored"][0], prompt[known], 1.0)
    lossless = drafted & rows["lossless"].to_numpy(dtype=bool) & np.isfinite(_number(rows, "score"))
    lossless &= sums["scored"][0][prompt] == 0
    np.add.at(sums["score"][0], prompt[lossless], _number(rows, "score")[lossless])
    np.add.at(sums["scored"][0], prompt[lossless], 1.0)


def _columns(rows: pd.DataFrame) -> dict[str, Array]:
    tokens, seconds, score = (_number(rows, n) for n in ("completion_tokens", "latency_s", "score"))
    ar_tokens, ar_seconds = _number(rows, "ar_completion_tokens"), _number(rows, "ar_latency_s")
    timed, paired = np.isfinite(seconds), np.isfinite(seconds) & np.isfinite(ar_seconds)
    referenced, scored = np.isfinite(ar_seconds) & np.isfinite(ar_tokens), np.isfinite(score)
    return {
        "tokens": np.where(timed, tokens, 0.0),
        "seconds": np.where(timed, seconds, 0.0),
        "answers": timed.astype(np.float64),
        "ar_tokens": np.where(referenced, ar_tokens, 0.0),
        "ar_seconds": np.where(referenced, ar_seconds, 0.0),
        "ar_answers": referenced.astype(np.float64),
        "paired_seconds": np.where(paired, seconds, 0.0),
        "paired_answers": paired.astype(np.float64),
        "paired_tokens": np.where(paired, tokens, 0.0),
        "paired_ar_tokens": np.where(paired, np.nan_to_num(ar_tokens), 0.0),
        "rounds": np.nan_to_num(_number(rows, "num_spec_rounds")),
        "accepted": np.nan_to_num(_number(rows, "num_accepted_draft_tokens")),
        "draft_seconds": np.where(timed, np.nan_to_num(_number(rows, "draft_time_s")), 0.0),
        "verify_seconds": np.where(timed, np.nan_to_num(_number(rows, "verify_time_s")), 0.0),
        "score": np.where(scored, score, 0.0),
        "scored": scored.astype(np.float64),
    }


def _number(rows: pd.DataFrame, name: str) -> Array:
    return rows[name].to_numpy(dtype=np.float64, na_value=np.nan)
