"""The word lists from which the generated tasks draw (`data/words.json`).

Mostly short common words: a small model spells them without slips, so that what a task shows is whether it copied
the right one.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

WORDS = Path(__file__).parent / "data" / "words.json"


@cache
def _all_words() -> dict[str, list[str]]:
    lists: dict[str, list[str]] = json.loads(WORDS.read_text(encoding="utf-8"))
    return lists


def words(kind: str) -> tuple[str, ...]:
    """The words of one kind, such as "cities", in a fixed order; the kinds are the keys of the data file."""
    return tuple(_all_words()[kind])
