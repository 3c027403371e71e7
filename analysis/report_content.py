"""What the report says, worked out: one `Section` per condition, no HTML."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.chart import Mark, marks
from analysis.comparison import Comparison, joint_vs_one_pass
from analysis.effort import EffortRow, effort_rows, effort_sentence
from analysis.errors import ResultsError
from analysis.examples import Example, task_examples
from analysis.operating_points import pooled_samples
from analysis.sample_building import split_conditions
from analysis.samples import TaskSample
from analysis.schema import CONDITION_COLUMNS
from analysis.time_split import TimeRow, time_rows

_NAMES = {"top_k": "top-k", "top_p": "top-p", "batch_size": "batch size", "dtype": "arithmetic"}


@dataclass(frozen=True)
class TaskDetails:
    """What is said of one task besides its frontier."""

    task: str
    metric: str
    effort: list[EffortRow]
    effort_sentence: str
    times: list[TimeRow]
    examples: list[Example]


@dataclass(frozen=True)
class Section:
    """Everything measured under one condition.

    Args:
        name: what sets this condition apart from the others; empty where there is only one.
        facts: name and value of every circumstance.
        comparisons: over all tasks first where there are several, then task by task.
        per_answer: the first comparison with speed counted in answers instead of tokens.
        problems: what could not be compared, one sentence each.
    """

    name: str
    facts: list[tuple[str, str]]
    comparisons: list[Comparison]
    per_answer: Comparison
    details: list[TaskDetails]
    problems: list[str]

    @property
    def headline(self) -> Comparison:
        """The comparison the verdict is about."""
        return self.comparisons[0]

    @property
    def caption(self) -> str:
        """The main conditions in one line."""
        shown = ("verifier", "drafter", "device", "arithmetic", "batch size", "temperature")
        return ", ".join(f"{name} {value}" for name, value in self.facts if name in shown) + ". Bars: 95 % intervals."

    def marks(self, comparison: Comparison) -> list[Mark]:
        """The points of a comparison that its table lists: both frontiers, AR and lossless ones, slowest first."""
        listed = [mark for mark in marks(comparison.points) if mark.in_focus]
        return sorted(listed, key=lambda mark: mark.speed.value)


def build_sections(cells: pd.DataFrame, generations: pd.DataFrame, n_bootstrap: int = 1000) -> list[Section]:
    """One section per condition, in the order they were measured.

    Raises:
        ResultsError: nothing can be compared under any condition; says why.
    """
    groups = split_conditions(cells)
    names = _names(groups)
    sections, problems = [], []
    for group, name in zip(groups, names, strict=True):
        section, reasons = _section(group, generations, name, n_bootstrap)
        problems += reasons
        sections += [section] if section else []
    if not sections:
        raise ResultsError(problems[0] if problems else _nothing_finished(cells))
    return sections


def _nothing_finished(cells: pd.DataFrame) -> str:
    failed = cells[cells["status"] == "failed"]
    found = f"{len(failed)} failed (the first: {failed['error'].iloc[0]})" if len(failed) else "none"
    return f"Expected finished speculative cells, got {found}: run the experiment again with --resume."


def _section(
    cells: pd.DataFrame, generations: pd.DataFrame, name: str, n_bootstrap: int
) -> tuple[Section | None, list[str]]:
    tasks = sorted(cells.loc[cells["decoding"] == "speculative", "task"].unique())
    cells = cells[cells["task"].isin(tasks)]
    wanted: list[str | None] = [None, *tasks] if len(tasks) > 1 else list(tasks)
    comparisons, problems = [], []
    for task in wanted:
        try:
            comparisons.append(joint_vs_one_pass(cells, generations, task, n_bootstrap=n_bootstrap))
        except ResultsError as error:
            problems.append(f"{task or 'Mean over tasks'}: {error}")
    if not comparisons:
        return None, problems
    head = comparisons[0].task
    answers = joint_vs_one_pass(cells, generations, head, axis="answer_speedup", n_bootstrap=n_bootstrap)
    compared = [c for c in comparisons if c.task is not None]
    details = [_details(cells, generations, c) for c in compared]
    return Section(name, _facts(cells), comparisons, answers, details, problems), problems


def _details(cells: pd.DataFrame, generations: pd.DataFrame, comparison: Comparison) -> TaskDetails:
    task = str(comparison.task)
    samples, _ = pooled_samples(cells, generations, task, comparison.axis)
    sample: TaskSample = samples[0]
    effort = effort_rows(sample)
    return TaskDetails(
        task=task,
        metric=", ".join(sorted(cells.loc[cells["task"] == task, "quality_metric"].unique())),
        effort=effort,
        effort_sentence=effort_sentence(effort),
        times=time_rows(sample),
        examples=task_examples(cells, generations, task, comparison.points),
    )


def _names(groups: Sequence[pd.DataFrame]) -> list[str]:
    """What distinguishes each group from the others, empty where nothing does."""
    values = [_condition(group) for group in groups]
    vary = [name for name in CONDITION_COLUMNS if len({value[name] for value in values}) > 1]
    return [", ".join(f"{_NAMES.get(n, n)} {value[n]}" for n in vary) for value in values]


def _condition(cells: pd.DataFrame) -> dict[str, str]:
    row = cells[cells["decoding"] == "speculative"].iloc[0]
    return {name: _text(row[name]) for name in CONDITION_COLUMNS}


def _facts(cells: pd.DataFrame) -> list[tuple[str, str]]:
    drafted = cells[cells["decoding"] == "speculative"]
    facts = [(_NAMES.get(name, name), text) for name, text in _condition(cells).items() if text != "none"]
    prompts = drafted.groupby("task")["num_prompts"].max()
    references = drafted.groupby("task")["num_ar_prompts"].max()
    facts += [
        ("CPU threads", _text(drafted["threads"].max())),
        ("prompts", ", ".join(f"{task} {count}" for task, count in prompts.items())),
        ("AR reference per cell", ", ".join(f"{task} {_text(count)}" for task, count in references.items())),
        ("repeats", _text(drafted["repeat"].nunique())),
        ("longest output", f"{_text(drafted['max_tokens'].max())} tokens"),
        ("cells", _text(len(cells))),
        ("code version", ", ".join(sorted(cells["code_version"].unique()))),
        ("measured", f"{cells['created_at'].min():%Y-%m-%d %H:%M} to {cells['created_at'].max():%H:%M} UTC"),
    ]
    return [(name, text) for name, text in facts if not text.startswith("none")]


def _text(value: object) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
