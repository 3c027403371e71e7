"""The engine: draft–verify rounds over a ragged batch. It knows neither text nor Ray.

Requests wait until a cache row is free, are prefilled, and then take part in every round until they end. Live rows are
rows ``0 .. B - 1`` of both models' caches; when one ends, the last row moves into its place.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cluster.decoding import Effort, RequestStats, Verdict, emitted_tokens, verify_block
from cluster.decoding.stopping import Decode, FinishReason
from cluster.messages import (
    Completion,
    ContextUpdate,
    DraftCall,
    DraftPort,
    DraftReply,
    EngineTimes,
    Progress,
    Request,
    RowMove,
    check_unique,
)
from cluster.models.verifier import Verifier

_PREFILL_CHUNK_TOKENS = 512


class RequestError(ValueError):
    """A request that this engine cannot run; the message says why and what to change."""


@dataclass
class _Row:
    """A live request and its committed tokens; its cache holds the entries before the anchor."""

    request: Request
    submitted_s: float
    tokens: list[int] = field(default_factory=list)
    stats: RequestStats = field(default_factory=RequestStats)

    @property
    def anchor(self) -> int:
        return self.tokens[-1]

    @property
    def anchor_position(self) -> int:
        return len(self.request.prompt) + len(self.tokens) - 1

    @property
    def remain_tokens(self) -> int:
        return self.request.stop.max_tokens - len(self.tokens)


class Engine:
    """Continuous batching of draft–verify rounds.

    Args:
        verifier: the verifier, in this process.
        drafter: where draft calls go; None serves only requests without effort.
        max_rows: most requests decoded at a time; more wait in order of arrival.
        decode: token ids to text, needed only by requests with stop strings.
    """

    def __init__(
        self, verifier: Verifier, drafter: DraftPort | None, max_rows: int = 8, decode: Decode | None = None
    ) -> None:
        if max_rows < 1:
            raise ValueError(f"Expected max_rows >= 1, got {max_rows}")
        self.verifier, self.drafter, self.max_rows, self.decode = verifier, drafter, max_rows, decode
        self.times = EngineTimes()
        self._waiting: deque[_Row] = deque()
        self._rows: list[_Row] = []
        self._journal: list[ContextUpdate | RowMove] = []

    @property
    def idle(self) -> bool:
        return not self._rows and not self._waiting

    def submit(self, request: Request) -> None:
        """Queue a request; raises :class:`RequestError` if it can never run here."""
        self.check(request)
        if any(row.request.id == request.id for row in (*self._rows, *self._waiting)):
            raise RequestError(f"Expected a request id not in flight, got {request.id!r} again")
        self._waiting.append(_Row(request, time.perf_counter()))

    def check(self, request: Request) -> None:
        """Raise :class:`RequestError` for a request that this engine cannot run."""
        context = self.verifier.context_tokens
        if not request.prompt:
            raise RequestError("Expected a prompt of at least one token, got an empty one")
        if len(request.prompt) >= context:
            raise RequestError(
                f"Expected a prompt shorter than the context of {context} tokens, got {len(request.prompt)}; shorten it"
            )
        if not all(0 <= t < self.verifier.vocab_size for t in request.prompt):
            raise RequestError(f"Expected token ids in 0 .. {self.verifier.vocab_size - 1}, got one outside")
        if request.stop.stop_strings and self.decode is None:
            raise RequestError("Expected a request without stop strings, got one with; this engine has no tokenizer")
        if request.effort is not None and self.drafter is None:
            raise RequestError("Expected a request without effort, got one with; this engine has no drafter")
        if request.effort is not None and self.drafter is not None and request.effort.block > self.drafter.max_block:
            raise RequestError(
                f"Expected a block of at most {self.drafter.max_block} tokens (what the drafter was trained for), "
                f"got {request.effort.block}"
            )

    def cancel(self, request_id: str) -> bool:
        """End a request before the next round; False if it is not in flight. Its completion comes with no event."""
        for row in self._waiting:
            if row.request.id == request_id:
                self._waiting.remove(row)
                return True
        for index, row in enumerate(self._rows):
            if row.request.id == request_id:
                self._remove(index)
                return True
        return False

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Run requests to their ends; completions come in the order in which they finish."""
        requests = list(requests)
        check_unique(requests)
        for request in requests:
            self.check(request)
        for request in requests:
            self.submit(request)
        while not self.idle:
            yield from (event.completion for event in self.step() if event.completion is not None)

    @torch.inference_mode()
    def step(self) -> list[Progress]:
        """Admit one waiting request, or else run one round; report the tokens committed."""
        started = time.perf_counter()
        events = self._admit()
        if not events and self._rows:
            events = self._round()
        self.times.total_s += time.perf_counter() - started
        return events

    def _admit(self) -> list[Progress]:
        """Prefill one waiting request into a free row; it yields its first token."""
        events = []
        if self._waiting and len(self._rows) < self.max_rows:
            row = self._waiting.popleft()
            started = time.perf_counter()
            self._rows.append(row)
            logits = self._prefill(row, len(self._rows) - 1)
            empty = torch.zeros(1, 0, dtype=torch.int64, device=logits.device)
            zero = torch.zeros(1, dtype=torch.int64, device=logits.device)
            anchor_position = zero + len(row.request.prompt) - 1
            request = row.request
            verdict = verify_block(logits, empty, zero, anchor_position, [request.sampling], [request.leniency])
            spent = time.perf_counter() - started
            self.times.prefill_s += spent
            row.stats.prefill_time_s = spent
            events += self._commit([row], empty, verdict)
        return events

    def _prefill(self, row: _Row, index: int) -> Tensor:
        """Run the prompt through the verifier in chunks; logits ``[1, 1, V]`` after its last token."""
        prompt = torch.tensor(row.request.prompt, device=self.verifier.device)[None]  # [1, P]
        for first in range(0, prompt.shape[1], _PREFILL_CHUNK_TOKENS):
            chunk = prompt[:, first : first + _PREFILL_CHUNK_TOKENS]
            start = torch.tensor([first], device=self.verifier.device)
            logits, features = self.verifier.forward(chunk, start, first_row=index, logits_to_keep=1)
            if row.request.effort is not None:
                self._journal.append(ContextUpdate(index, (first,), features))
        return logits

    def _round(self) -> list[Progress]:
        """Draft, verify and commit for all live rows."""
        rows = list(self._rows)
        lengths = [self._draft_length(row) for row in rows]
        reply = self._draft(rows, lengths) if any(lengths) else None
        if reply is None:
            self._journal.clear()  # no live row will be drafted for again
        draft, verdict, verify_s = self._verify(rows, lengths, reply)
        draft_s = reply.draft_time_s if reply else 0.0
        self.times.draft_s += draft_s
        self.times.verify_s += verify_s
        self.times.rounds += 1
        for index, row in enumerate(rows):
            row.stats.draft_time_s += draft_s / len(rows)
            row.stats.verify_time_s += verify_s / len(rows)
            row.stats.draft_forwards += reply.forwards[index] if reply else 0
        return self._commit(rows, draft, verdict, lengths)

    def _draft_length(self, row: _Row) -> int:
        """Tokens worth drafting: the block, less what the token limit and the two contexts have no room for.

        The verifier adds a token of its own to what it accepts, the drafter does not. Where this is 0 it stays 0.
        """
        if row.request.effort is None or self.drafter is None:
            return 0
        room = min(self.verifier.context_tokens - 1, self.drafter.context_tokens) - row.anchor_position - 1
        return max(0, min(row.request.effort.block, row.remain_tokens - 1, room))

    def _draft(self, rows: list[_Row], lengths: list[int]) -> DraftReply:
        assert self.drafter is not None
        call = DraftCall(
            journal=tuple(self._journal),
            anchors=tuple(row.anchor for row in rows),
            anchor_positions=tuple(row.anchor_position for row in rows),
            lengths=tuple(lengths),
            samplings=tuple(row.request.sampling for row in rows),
            efforts=tuple(row.request.effort or Effort() for row in rows),
        )
        self._journal = []
        return self.drafter.draft(call)

    def _verify(self, rows: list[_Row], lengths: list[int], reply: DraftReply | None) -> tuple[Tensor, Verdict, float]:
        """One verifier forward over every row's anchor and draft; keeps the features for the next draft call.

        Returns:
            the drafts ``[B, K]``, their verdict, and the seconds the forward took.
        """
        device, width = self.verifier.device, max(lengths)
        draft = torch.zeros(len(rows), width, dtype=torch.int64)
        for index, tokens in enumerate(reply.tokens if reply else ()):
            draft[index, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
        draft = draft.to(device)
        anchors = torch.tensor([row.anchor for row in rows], device=device)
        positions = torch.tensor([row.anchor_position for row in rows], device=device)
        block = torch.cat([anchors[:, None], draft], dim=1)  # [B, K + 1]
        started = time.perf_counter()
        logits, features = self.verifier.forward(block, positions)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        verify_s = time.perf_counter() - started
        if any(row.request.effort is not None for row in rows):
            self._journal.append(ContextUpdate(0, tuple(row.anchor_position for row in rows), features))
        verdict = verify_block(
            logits,
            draft,
            torch.tensor(lengths, device=device),
            positions,
            [row.request.sampling for row in rows],
            [row.request.leniency for row in rows],
        )
        return draft, verdict, verify_s

    def _commit(
        self, rows: list[_Row], draft: Tensor, verdict: Verdict, lengths: list[int] | None = None
    ) -> list[Progress]:
        """Append what each row accepted, cut at its stop, and take out the rows that end."""
        emitted = emitted_tokens(draft, verdict.own, verdict.accepted).tolist()
        accepted, own = verdict.accepted.tolist(), verdict.own.tolist()
        margins, failed = verdict.required_margin.tolist(), verdict.failed.tolist()
        regret, nll = verdict.regret.tolist(), verdict.nll.tolist()
        events = []
        for b, row in enumerate(rows):
            if failed[b]:
                self.verifier.cache.clear_row(self._rows.index(row))
                events.append(self._finish(row, (), "error", "the verifier's logits are not finite"))
                continue
            new = emitted[b][: accepted[b] + 1]
            kept, reason = row.request.stop.cut(row.tokens, new, self.decode)
            new = new[:kept]
            row.tokens += new
            stats = row.stats
            stats.verifier_forwards += 1
            stats.own_sample_disagreements += sum(t != o for t, o in zip(new, own[b], strict=False))
            stats.regret_nats += sum(regret[b][:kept])
            stats.nll_nats += sum(nll[b][:kept])
            if stats.ttft_s is None:
                stats.ttft_s = time.perf_counter() - row.submitted_s
            if lengths is not None and lengths[b] > 0:
                stats.proposed_per_round.append(lengths[b])
                stats.accepted_per_round.append(min(accepted[b], kept))
                stats.required_margins.append(_until_mismatch(margins[b][: lengths[b]]))
            if reason is None and row.anchor_position + 1 >= self.verifier.context_tokens:
                reason = "length"
            events.append(self._finish(row, tuple(new), reason) if reason else Progress(row.request.id, tuple(new)))
        return events

    def _finish(self, row: _Row, new: tuple[int, ...], reason: FinishReason, error: str | None = None) -> Progress:
        row.stats.latency_s = time.perf_counter() - row.submitted_s
        completion = Completion(row.request.id, tuple(row.tokens), reason, row.stats, error)
        self._remove(self._rows.index(row))
        return Progress(row.request.id, new, completion)

    def _remove(self, index: int) -> None:
        """Free a row: the last live row moves into its place, in both caches."""
        last = len(self._rows) - 1
        if index != last:
            self._rows[index] = self._rows[last]
            self.verifier.cache.move_row(last, index)
            if self._rows[last].request.effort is not None:  # the drafter may never have heard of other rows
                self._journal.append(RowMove(last, index))
        self._rows.pop()
        if all(row.request.effort is None for row in self._rows):
            self._journal.clear()


def _until_mismatch(margins: list[float]) -> list[float]:
    """The margins up to and including the first that is not 0."""
    first = next((i for i, m in enumerate(margins) if m > 0.0), len(margins) - 1)
    return margins[: first + 1]
