"""Token ids to deliverable text, token by token: whole characters only, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_UNFINISHED = "\ufffd"
_LONGEST_TAIL = 3  # a UTF-8 character has four bytes, so at most three are waiting for the rest
_CONTEXT_TOKENS = 16


class CharacterStream:
    """Incremental detokenisation that gives out a character once all its bytes are there.

    The pieces, joined, equal the decoding of all tokens at once, without a character that the end cuts short. How the
    tokens are grouped into calls does not matter.

    Args:
        decode: token ids to text, U+FFFD for bytes that are no character.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._context: list[int] = []  # the last tokens given out: some decoders treat the first token differently
        self._pending: list[int] = []
        self._given = 0  # characters of the pending tokens' text that are given out already

    def push(self, token_id: int) -> str:
        """The text that this token completes; often empty for parts of a character."""
        self._pending.append(token_id)
        text = self._pending_text()
        whole = max(len(text.rstrip(_UNFINISHED)), len(text) - _LONGEST_TAIL)
        piece = text[self._given : whole]
        self._given = max(self._given, whole)
        if whole == len(text):
            self._context = self._pending if text else (self._context + self._pending)[-_CONTEXT_TOKENS:]
            self._pending, self._given = [], 0
        return piece

    def _pending_text(self) -> str:
        before = self._decode(self._context)
        after = self._decode(self._context + self._pending)
        # Byte-fallback decoders turn a whole run of bytes into U+FFFD while its end is missing.
        return after[len(before) :] if after.startswith(before) else self._decode(self._pending)


class DeliveredText:
    """The text of one generation as its client sees it.

    Args:
        decode: see :class:`CharacterStream`.
        stop_strings: the text ends before the first of them.
        stop_ids: tokens without text of their own.
    """

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        stop_strings: Sequence[str] = (),
        stop_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._characters = CharacterStream(decode)
        self._stops, self._stop_ids = tuple(stop_strings), stop_ids
        self._held = ""
        self.tokens = 0
        self.stopped = False

    def push(self, token_ids: Sequence[int]) -> str:
        """What may be sent after these tokens; nothing more once a stop string is complete (``stopped``)."""
        pieces = []
        for token_id in token_ids:
            if self.stopped:
                break
            self.tokens += 1
            if token_id not in self._stop_ids:
                pieces.append(self._release(self._characters.push(token_id)))
        return "".join(pieces)

    def finish(self) -> str:
        """The rest, at the end of the generation: what only might have begun a stop string."""
        rest, self._held = self._held, ""
        return "" if self.stopped else rest

    def _release(self, piece: str) -> str:
        text = self._held + piece
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
