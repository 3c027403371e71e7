"""Tasks whose prompts are generated: distinct items, reproducible streams, disjoint splits.

Train and eval are kept apart by the content of the question itself: a hash of it says to which split it
belongs, and a question drawn for the other split is thrown away. Nothing has to be remembered between calls.
"""

from __future__ import annotations

import hashlib
import random
from abc import abstractmethod
from dataclasses import dataclass

from jobs.tasks.base import Item, Message, Split, Task, check_request

MAX_DRAWS = 10_000


def split_of(question: str) -> Split:
    """The split a question belongs to, by a hash of its text (half of all questions each)."""
    return "eval" if hashlib.sha256(question.encode()).digest()[0] % 2 else "train"


@dataclass(frozen=True)
class Draft:
    """A generated prompt before it has an id; `question` is the part that must be new."""

    question: str
    messages: tuple[Message, ...]
    reference: str
    prefill: str = ""


@dataclass(frozen=True)
class GeneratedTask(Task):
    """A task that can draw any number of prompts from a random generator."""

    @abstractmethod
    def draw(self, rng: random.Random) -> Draft:
        """One random prompt, of either split."""

    def items(self, split: Split, count: int, seed: int) -> list[Item]:
        """See `Task.items`; every (split, seed) is an endless stream of distinct items."""
        check_request(split, count)
        seen: set[str] = set()
        return [self._item(split, seed, index, seen) for index in range(count)]

    def _item(self, split: Split, seed: int, index: int, seen: set[str]) -> Item:
        """Draw until a question of this split comes that the earlier items did not ask."""
        rng = random.Random(f"{self.name}/{split}/{seed}/{index}")
        for _ in range(MAX_DRAWS):
            draft = self.draw(rng)
            if split_of(draft.question) == split and draft.question not in seen:
                seen.add(draft.question)
                id_ = f"{self.name}/{split}/{seed}/{index}"
                return Item(id_, draft.messages, draft.prefill, draft.reference)
        raise ValueError(
            f"Expected a new {self.name} question for item {index} of {split}, got only repeats in {MAX_DRAWS} draws; "
            "ask for fewer items."
        )
