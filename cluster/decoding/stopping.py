"""When a generation ends: stop ids, stop strings, the token limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "error", "cancelled"]
Decode = Callable[[list[int]], str]


@dataclass(frozen=True)
class StopRules:
    """What ends one generation.

    Attributes:
        max_tokens: most tokens generated, >= 1.
        stop_ids: token ids that end the text; the id itself counts as generated and is the last one.
        stop_strings: texts that end the generation; the token that completes one is the last one generated, and the
            delivered text ends before the stop string.
    """

    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"Expected max_tokens >= 1, got {self.max_tokens}")
        if any(not s for s in self.stop_strings):
            raise ValueError("Expected non-empty stop strings, got an empty one")

    def cut(self, before: Sequence[int], new: Sequence[int], decode: Decode | None) -> tuple[int, FinishReason | None]:
        """How many of the ``new`` tokens are committed after ``before``, and why the generation ends there, if it does.

        ``decode`` turns token ids into text; it is needed only with stop strings.
        """
        room = self.max_tokens - len(before)
        kept, reason = min(len(new), room), None
        for index in range(kept):
            if new[index] in self.stop_ids or self._string_ends_at(before, new[: index + 1], decode):
                kept, reason = index + 1, "stop"
                break
        if reason is None and kept == room:
            return kept, "length"
        return kept, reason  # type: ignore[return-value]

    def _string_ends_at(self, before: Sequence[int], new: Sequence[int], decode: Decode | None) -> bool:
        if not self.stop_strings:
            return False
        if decode is None:
            raise ValueError("Expected a decode function to honour stop strings, got None")
        longest = max(map(len, self.stop_strings))
        tail = [*before, *new][-(4 * longest + 8) :]  # a character may take four byte tokens
        text = decode(tail)
        return any(stop in text for stop in self.stop_strings)

    def trim(self, text: str) -> str:
        """The delivered text: everything before the earliest stop string."""
        found = [at for at in (text.find(stop) for stop in self.stop_strings) if at >= 0]
        return text[: min(found)] if found else text
