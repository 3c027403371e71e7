"""Key-value lookup: eight pairs of a word and a four-digit code, and the question which code one word has.

The answer is nowhere in the weights, so a wrong token is a wrong answer: the task reacts to lenient decoding.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from jobs.tasks.base import Item, Message
from jobs.tasks.generated import Draft, GeneratedTask
from jobs.tasks.words import words

PAIRS = 8


@dataclass(frozen=True)
class KeyValue(GeneratedTask):
    """Lookup among eight pairs; an answer is right (1.0) when it is the asked code and nothing else."""

    name: str = "key_value"
    quality_metric: str = "exact_match"
    max_tokens: int = 16
    stop: tuple[str, ...] = ("\n",)

    def draw(self, rng: random.Random) -> Draft:
        """Eight distinct words with distinct codes; one of them is asked for."""
        keys = rng.sample(words("lookup_keys"), PAIRS)
        codes = [str(code) for code in rng.sample(range(1000, 10000), PAIRS)]
        asked = rng.randrange(PAIRS)
        listing = "\n".join(f"{key}: {code}" for key, code in zip(keys, codes, strict=True))
        question = f"{listing}\n\nRepeat the line that starts with {keys[asked]}."
        messages = (Message("system", "Repeat the line."), Message("user", question))
        return Draft(question, messages, codes[asked], prefill=f"{keys[asked]}:")

    def score(self, item: Item, text: str) -> float:
        """1.0 when the answer is the code, otherwise 0.0; blanks and a final full stop are forgiven."""
        return float(text.strip().removesuffix(".") == item.reference)
