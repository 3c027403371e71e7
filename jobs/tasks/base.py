"""The contract between tasks and whoever decodes them: items, the task interface, rendering.

A task makes prompts (`items`) and judges answers (`score`). It knows nothing of models, devices or Ray;
the tokenizer is only handed to `render`.
"""

from __future__ import annotations

import hashlib
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Split = Literal["train", "eval"]
SPLITS: tuple[Split, ...] = ("train", "eval")


class Message(NamedTuple):
    """One chat turn: `role` is what the chat template knows ("system", "user", "assistant")."""

    role: str
    content: str


@dataclass(frozen=True)
class Item:
    """One prompt and what its scorer needs.

    `prefill` is text the assistant's answer already starts with; it belongs to the prompt, so the answer
    handed to `Task.score` does not repeat it. It must not end in whitespace: in most vocabularies a newline
    with its indent is one token, and a prompt that ends inside that token derails the model.

    Raises:
        ValueError: no turns, a blank last turn, or a prefill that ends in whitespace.
    """

    id: str
    messages: tuple[Message, ...]
    prefill: str = ""
    reference: str = ""

    def __post_init__(self) -> None:
        if not self.messages or not self.messages[-1].content.strip():
            raise ValueError(f"Expected a prompt with text in item {self.id!r}, got an empty one; write or drop it.")
        if self.prefill != self.prefill.rstrip():
            raise ValueError(
                f"Expected a prefill without trailing whitespace in item {self.id!r}, "
                f"got {self.prefill[-20:]!r}; call rstrip() on it."
            )


@dataclass(frozen=True)
class Task(ABC):
    """A kind of prompt with its scorer.

    `max_tokens` is the default length limit of an answer in tokens; `dataclasses.replace(task, max_tokens=64)`
    gives the same task with another one. `stop` are strings that end an answer; whether the text handed to
    `score` still contains the stop string does not matter. `quality_metric` names what `score` returns, or is
    "agreement" for an open task.
    """

    name: str
    quality_metric: str
    max_tokens: int
    stop: tuple[str, ...] = ()

    @abstractmethod
    def items(self, split: Split, count: int, seed: int) -> list[Item]:
        """Make `count` distinct prompts of a split.

        Item i depends on (split, seed, i) alone, so a larger count extends a smaller one. No prompt of "train"
        is ever a prompt of "eval", whatever the seeds.

        Raises:
            ValueError: an unknown split, or more items than the split holds.
        """

    @abstractmethod
    def score(self, item: Item, text: str) -> float | None:
        """Quality of an answer in [0, 1], or None where there is nothing to compare with (open tasks)."""


def check_request(split: str, count: int) -> None:
    """Refuse an unknown split and a negative count with a ValueError."""
    if split not in SPLITS:
        raise ValueError(f"Expected a split of {', '.join(SPLITS)}, got {split!r}; correct the name.")
    if count < 0:
        raise ValueError(f"Expected 0 or more items, got count={count}; ask for another count.")


def take(pool: Sequence[Item], split: Split, count: int, key: str) -> list[Item]:
    """The first `count` items of the pool in a random order that the key fixes.

    Raises:
        ValueError: the pool is smaller than `count`.
    """
    if count > len(pool):
        raise ValueError(f"Expected at most {len(pool)} items (all there are in {split}), got count={count}; lower it.")
    return random.Random(key).sample(pool, len(pool))[:count]


def fingerprint(items: Iterable[Item]) -> str:
    """SHA-256 (hex) of the items' canonical JSON: equal exactly when every id, prompt and reference is."""
    plain = [asdict(item) for item in items]
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def render_text(tokenizer: PreTrainedTokenizerBase, item: Item) -> str:
    """The prompt as text: the chat template's turns, its generation prompt, then the prefill.

    Models that can think before they answer are asked not to (`enable_thinking`; other templates ignore it).

    Raises:
        ValueError: the tokenizer has no chat template.
    """
    if not tokenizer.chat_template:
        raise ValueError(
            f"Expected a tokenizer with a chat template, got {tokenizer.name_or_path!r} without one; "
            "use an instruction-tuned model or set tokenizer.chat_template."
        )
    turns = [{"role": role, "content": content} for role, content in item.messages]
    prompt = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    return str(prompt) + item.prefill


def render(tokenizer: PreTrainedTokenizerBase, item: Item) -> list[int]:
    """The prompt as token ids; the chat template alone writes the BOS token, so it is never doubled.

    Raises:
        ValueError: the tokenizer has no chat template.
    """
    ids = tokenizer(render_text(tokenizer, item), add_special_tokens=False)["input_ids"]
    return [int(i) for i in ids]
