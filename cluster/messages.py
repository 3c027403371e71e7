"""The frozen messages between a client, the engine and the two models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from cluster.decoding import GREEDY, LOSSLESS, Effort, Leniency, RequestStats, Sampling, StopRules
from cluster.decoding.stopping import FinishReason


@dataclass(frozen=True)
class Request:
    """One generation to run.

    Attributes:
        id: unique among the requests in flight.
        prompt: the prompt's token ids, at least one.
        stop: what ends it.
        sampling: temperature, truncation, seed.
        effort: how blocks are drafted; None decodes plainly, token by token.
        leniency: how the verifier accepts drafted tokens.
    """

    id: str
    prompt: tuple[int, ...]
    stop: StopRules
    sampling: Sampling = GREEDY
    effort: Effort | None = None
    leniency: Leniency = LOSSLESS


@dataclass(frozen=True)
class Completion:
    """A finished generation: its tokens (a stop id included), why it ended, what it cost, and the error if it failed."""

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: RequestStats
    error: str | None = None


@dataclass(frozen=True)
class Progress:
    """Tokens that one round committed for a request; ``completion`` is set with the last of them."""

    request_id: str
    token_ids: tuple[int, ...]
    completion: Completion | None = None


@dataclass(frozen=True)
class ContextUpdate:
    """Verifier features for a window of drafter rows: ``features [n, T, F]``, first positions ``[n]``."""

    first_row: int
    first_positions: tuple[int, ...]
    features: Tensor


@dataclass(frozen=True)
class RowMove:
    """Row ``source`` was moved over row ``target``, whose request ended."""

    source: int
    target: int


@dataclass(frozen=True)
class DraftCall:
    """One round's call to the drafter, for rows ``0 .. B - 1``.

    Attributes:
        journal: what happened to the rows since the last call, to be replayed in order.
        anchors, anchor_positions: each row's last committed token and its absolute position.
        lengths: tokens to draft, 0 for a row that is decoded plainly.
        samplings, efforts: one per row; the effort of a row of length 0 is ignored.
    """

    journal: tuple[ContextUpdate | RowMove, ...]
    anchors: tuple[int, ...]
    anchor_positions: tuple[int, ...]
    lengths: tuple[int, ...]
    samplings: tuple[Sampling, ...]
    efforts: tuple[Effort, ...]


@dataclass(frozen=True)
class DraftReply:
    """Drafted ids per row (``lengths`` of them), passes per row, and the seconds the drafter worked."""

    tokens: tuple[tuple[int, ...], ...]
    forwards: tuple[int, ...]
    draft_time_s: float


class DraftPort(Protocol):
    """Where the engine sends its draft calls: a drafter in this process or an actor elsewhere."""

    max_block: int
    context_tokens: int

    def draft(self, call: DraftCall) -> DraftReply: ...


@dataclass
class EngineTimes:
    """Seconds an engine spent since its start: prefill, drafting, verifier forwards, all.

    What is left, ``other_s``, is transport to the drafter, acceptance and bookkeeping.
    """

    prefill_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    total_s: float = 0.0
    rounds: int = field(default=0)

    @property
    def other_s(self) -> float:
        return self.total_s - self.prefill_s - self.draft_s - self.verify_s


def check_unique(requests: Sequence[Request]) -> None:
    """Refuse a batch that uses a request id twice."""
    seen: set[str] = set()
    for request in requests:
        if request.id in seen:
            raise ValueError(f"Expected unique request ids, got {request.id!r} twice")
        seen.add(request.id)
