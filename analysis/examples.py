"""Example texts: one prompt at several operating points, what differs from the lossless text marked."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import pandas as pd
from markupsafe import Markup, escape

from analysis.labels import point_keys
from analysis.sample_building import latest_cells

_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
_MAX_COLUMNS = 4
_MAX_WORDS = 600


@dataclass(frozen=True)
class ExampleText:
    """One answer. `html` is escaped text with <mark> around what differs from the lossless answer."""

    label: str
    note: str
    html: Markup
    score: float | None
    tokens: int
    same: bool


@dataclass(frozen=True)
class Example:
    """One prompt and its answers, the lossless one first."""

    task: str
    prompt: str
    texts: list[ExampleText]


def task_examples(
    cells: pd.DataFrame, generations: pd.DataFrame, task: str, points: pd.DataFrame, count: int = 2
) -> list[Example]:
    """The prompts of a task that tell most: one where a lenient answer changes its score, one where not.

    Args:
        cells, generations: of one condition.
        points: `Comparison.points` of this task; the lossless text and points of the joint frontier are shown.
    """
    shown = _shown(points)
    if shown.empty:
        return []
    chosen = latest_cells(cells[(cells["task"] == task) & (cells["status"] == "ok")])
    chosen = chosen[chosen["repeat"] == chosen["repeat"].min()]
    keyed = dict(zip(point_keys(chosen), chosen["cell_id"], strict=True))
    ids = [keyed[key] for key in point_keys(shown) if key in keyed]
    rows = generations[generations["cell_id"].isin(ids) & (generations["finish_reason"] != "error")]
    tables = {prompt: group.set_index("cell_id") for prompt, group in rows.groupby("prompt_id", sort=True)}
    full = [table.loc[ids] for table in tables.values() if set(ids) <= set(table.index)]
    return [_example(task, table, shown) for table in _most_telling(full)[:count]]


def mark_difference(reference: str, text: str) -> Markup:
    """`text` escaped, <mark> around words that `reference` has not in that place, … where it leaves words out."""
    old, new = _WORDS.findall(reference)[:_MAX_WORDS], _WORDS.findall(text)[:_MAX_WORDS]
    parts = []
    for kind, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        words = escape("".join(new[c:d]))
        if kind == "equal":
            parts.append(words)
        elif kind == "delete":
            parts.append(Markup('<mark class="gap" title="left out: {}">…</mark>').format("".join(old[a:b])))
        else:
            parts.append(Markup("<mark>{}</mark>").format(words))
    return Markup("").join(parts) + (" …" if len(_WORDS.findall(text)) > _MAX_WORDS else "")


def _shown(points: pd.DataFrame) -> pd.DataFrame:
    """The fastest lossless point, then lossy points spread over the joint frontier."""
    lossless = points[points["lossless"] & (points["decoding"] == "speculative")].nlargest(1, "speed")
    lossy = points[points["on_joint"] & ~points["lossless"]].sort_values("speed")
    if lossless.empty or lossy.empty:
        return lossless
    places = {round(i * (len(lossy) - 1) / (_MAX_COLUMNS - 2)) for i in range(_MAX_COLUMNS - 1)}
    return pd.concat([lossless, lossy.iloc[sorted(places)]])


def _most_telling(tables: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """First one whose score changes with the text, then one whose text alone changes; short ones first."""

    def rank(table: pd.DataFrame) -> tuple[int, int, int]:
        texts, scores = table["text"].nunique(), table["score"].nunique()
        return (-scores, -texts, int(table["text"].str.len().sum()))

    ordered = sorted(tables, key=rank)
    quiet = [table for table in ordered if table["score"].nunique() < 2 and table["text"].nunique() > 1]
    return [*ordered[:1], *(t for t in quiet[:1] if t is not ordered[0]), *ordered[1:]]


def _example(task: str, table: pd.DataFrame, shown: pd.DataFrame) -> Example:
    reference = str(table["text"].iloc[0])
    texts = []
    for (_, row), (_, point) in zip(table.iterrows(), shown.iterrows(), strict=True):
        text = str(row["text"])
        texts.append(
            ExampleText(
                label=str(point["label"]),
                note="lossless" if point["lossless"] else f"{float(point['speed']):.2f}×",
                html=mark_difference(reference, text),
                score=None if pd.isna(row["score"]) else float(row["score"]),
                tokens=int(row["completion_tokens"]),
                same=text == reference,
            )
        )
    return Example(task, str(table["prompt_text"].iloc[0]), texts)
