"""Open chat: everyday requests without a right answer; quality is agreement with the verifier's own tokens.

The package brings sixty-four prompts of its own, so that it works without any data set. Other question sets are read
with `load_jsonl`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jobs.tasks.base import Item, Message, Split, Task, check_request, take

BUILT_IN = Path(__file__).parent / "data" / "chat_prompts.jsonl"


@dataclass(frozen=True)
class Chat(Task):
    """Open chat, one user turn."""

    name: str = "chat"
    quality_metric: str = "agreement"
    max_tokens: int = 64

    def items(self, split: Split, count: int, seed: int) -> list[Item]:
        """See `Task.items`; eval is the built-in list, shuffled by the seed.

        Raises:
            ValueError: also for the train split, which has no prompts here.
        """
        check_request(split, count)
        if split == "train":
            raise ValueError(
                "Expected the eval split of chat, got 'train': training prompts are sampled from the verifier itself; "
                "make them with python -m jobs.make_corpus."
            )
        return take(_built_in(), split, count, f"{self.name}/{split}/{seed}")

    def score(self, item: Item, text: str) -> None:
        """None: there is no reference answer."""


@cache
def _built_in() -> tuple[Item, ...]:
    return tuple(load_jsonl(BUILT_IN, name="chat/eval"))


def load_jsonl(path: str | Path, name: str = "") -> list[Item]:
    """Chat items from a file with one JSON object a line, in the file's order.

    Read are the layouts of Spec-Bench and MT-bench (`question_id`, `turns`, of which the first is the prompt, since
    the later ones presuppose answers) and of GSM8K (`question`, `answer`). Ids are "<name or file stem>/<question_id
    or row number>"; the reference is whatever the file gives, as text.

    Raises:
        ValueError: a line that is not such an object, with its number.
    """
    path = Path(path)
    items = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                items.append(_parse(line, f"{path}, line {number}", name or path.stem, number))
    return items


def _parse(line: str, where: str, name: str, number: int) -> Item:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"Expected one JSON object a line, got {line[:60]!r} in {where} ({error}).") from error
    prompt = _prompt(row)
    if prompt is None:
        keys = sorted(row) if isinstance(row, dict) else type(row).__name__
        raise ValueError(f"Expected a key 'turns' (list of text) or 'question' (text) in {where}, got {keys}; add it.")
    reference = row.get("reference", row.get("answer", ""))
    text = reference if isinstance(reference, str) else json.dumps(reference)
    return Item(f"{name}/{row.get('question_id', number)}", (Message("user", prompt),), reference=text)


def _prompt(row: Any) -> str | None:
    """The first user turn, or None where the row has none with text in it."""
    if not isinstance(row, dict):
        return None
    turns = row.get("turns", [row.get("question")])
    first = turns[0] if isinstance(turns, list) and turns else None
    return first if isinstance(first, str) and first.strip() else None
