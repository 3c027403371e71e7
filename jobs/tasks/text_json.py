"""Text to JSON: a sentence with three or four facts becomes a flat JSON object, after three examples.

Sentences come from templates of seven kinds (people, orders, events, trips, weather, pets, goods); the three
examples are of the question's kind, one after each of its templates, and always from the train split, so that they
never show an eval question.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from jobs.tasks.base import Item, Message
from jobs.tasks.generated import Draft, GeneratedTask, split_of
from jobs.tasks.records import KINDS, Kind

SHOTS = 3
INSTRUCTION = "Convert the text to JSON."


@dataclass(frozen=True)
class TextJson(GeneratedTask):
    """Sentence to JSON object; an answer is right (1.0) when it parses to exactly the reference object."""

    name: str = "text_json"
    quality_metric: str = "exact_match"
    max_tokens: int = 64
    stop: tuple[str, ...] = ("\n",)

    def draw(self, rng: random.Random) -> Draft:
        """One question with three examples of its kind."""
        kind = rng.choice(KINDS)
        shots = [_train_pair(kind, sentence, rng) for sentence in rng.sample(kind.sentences, SHOTS)]
        question, reference = kind.pair(rng.choice(kind.sentences), rng)
        return Draft(question, _turns(shots, question), reference)

    def score(self, item: Item, text: str) -> float:
        """1.0 when the whole answer is the reference object (key order and spacing are free), otherwise 0.0."""
        answer = parse_object(text)
        return float(answer is not None and _same(answer, json.loads(item.reference)))


def _train_pair(kind: Kind, template: str, rng: random.Random) -> tuple[str, str]:
    while True:
        sentence, reference = kind.pair(template, rng)
        if split_of(sentence) == "train":
            return sentence, reference


def _turns(shots: list[tuple[str, str]], question: str) -> tuple[Message, ...]:
    turns = [Message("system", INSTRUCTION)]
    for sentence, reference in shots:
        turns += [Message("user", sentence), Message("assistant", reference)]
    return (*turns, Message("user", question))


def parse_object(text: str) -> dict[str, Any] | None:
    """The JSON object that is the whole text, or None when the text is anything else."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def field_accuracy(item: Item, text: str) -> float:
    """Share of the reference's fields that the answer holds with the same value, in [0, 1].

    Text behind the first object is forgiven; an answer without a readable object scores 0.
    """
    start = text.find("{")
    try:
        answer = json.JSONDecoder().raw_decode(text, max(start, 0))[0]
    except ValueError:
        return 0.0
    reference = json.loads(item.reference)
    if not isinstance(answer, dict):
        return 0.0
    hits = sum(key in answer and _same(answer[key], value) for key, value in reference.items())
    return hits / len(reference)


def _same(left: Any, right: Any) -> bool:
    """Equality as JSON: 1 is neither true nor "1" nor 1.0, but 12.5 is 12.50 and key order is free."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
