"""Outcomes and deltas as OpenAI's response objects and stream chunks."""

from __future__ import annotations

import time
from collections.abc import Callable

from serve.protocol import (
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    Completion,
    Statistics,
    TextChoice,
    TokensDetails,
    Usage,
)
from serve.service import Delta, Outcome


class TextReplies:
    """The objects of one completion."""

    prefix = "cmpl"

    def __init__(self, request_id: str, model: str) -> None:
        self._id, self._model, self._created = f"{self.prefix}-{request_id}", model, int(time.time())

    def whole(self, text: str, outcome: Outcome) -> Completion:
        """The response without streaming."""
        choice = TextChoice(text=text, finish_reason=outcome.finish_reason)
        return self._completion([choice], usage_of(outcome), statistics_of(outcome))

    def chunk(self, delta: Delta) -> Completion:
        """One piece of a stream; the last one carries our statistics."""
        outcome = delta.outcome
        choice = TextChoice(text=delta.text, finish_reason=outcome.finish_reason if outcome else None)
        return self._completion([choice], None, statistics_of(outcome) if outcome else None)

    def usage(self, outcome: Outcome) -> Completion:
        """The chunk after the last piece, for clients that ask for the usage."""
        return self._completion([], usage_of(outcome), None)

    def _completion(self, choices: list[TextChoice], usage: Usage | None, statistics: Statistics | None) -> Completion:
        return Completion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage,
            specfrontier=statistics,
        )


class ChatReplies:
    """The objects of one chat answer."""

    prefix = "chatcmpl"

    def __init__(self, request_id: str, model: str) -> None:
        self._id, self._model, self._created = f"{self.prefix}-{request_id}", model, int(time.time())
        self._begun = False

    def whole(self, text: str, outcome: Outcome) -> ChatCompletion:
        """See :meth:`TextReplies.whole`."""
        return ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=[ChatChoice(message=ChatAnswer(content=text), finish_reason=outcome.finish_reason)],
            usage=usage_of(outcome),
            specfrontier=statistics_of(outcome),
        )

    def chunk(self, delta: Delta) -> ChatChunk:
        """See :meth:`TextReplies.chunk`."""
        outcome = delta.outcome
        content = ChatDelta(role=None if self._begun else "assistant", content=delta.text)
        self._begun = True
        choice = ChatChunkChoice(delta=content, finish_reason=outcome.finish_reason if outcome else None)
        return self._chunk([choice], None, statistics_of(outcome) if outcome else None)

    def usage(self, outcome: Outcome) -> ChatChunk:
        """See :meth:`TextReplies.usage`."""
        return self._chunk([], usage_of(outcome), None)

    def _chunk(self, choices: list[ChatChunkChoice], usage: Usage | None, statistics: Statistics | None) -> ChatChunk:
        return ChatChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage,
            specfrontier=statistics,
        )


Replies = TextReplies | ChatReplies
RepliesFactory = Callable[[str, str], Replies]


def usage_of(outcome: Outcome) -> Usage:
    """Token counts of a generation."""
    prompt, drafted = len(outcome.request.prompt), None
    if outcome.stats is not None and outcome.request.effort is not None:
        drafted = outcome.stats
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=outcome.completion_tokens,
        total_tokens=prompt + outcome.completion_tokens,
        completion_tokens_details=TokensDetails(
            accepted_prediction_tokens=drafted.num_accepted_draft_tokens if drafted else None,
            rejected_prediction_tokens=drafted.num_draft_tokens - drafted.num_accepted_draft_tokens
            if drafted
            else None,
        ),
    )


def statistics_of(outcome: Outcome) -> Statistics:
    """Knobs and counters of a generation."""
    request, stats = outcome.request, outcome.stats
    effort, leniency = request.effort, request.leniency
    drafted = stats if effort is not None else None
    return Statistics(
        block=effort.block if effort else 0,
        passes=effort.passes if effort else None,
        reveal=effort.reveal if effort else None,
        value=effort.value if effort else None,
        leniency_rule=leniency.rule,
        leniency_value=leniency.value,
        lossless=effort is None or leniency.lossless,
        top_k=request.sampling.top_k,
        seed=request.sampling.seed,
        num_spec_rounds=drafted.num_spec_rounds if drafted else None,
        num_draft_tokens=drafted.num_draft_tokens if drafted else None,
        num_accepted_draft_tokens=drafted.num_accepted_draft_tokens if drafted else None,
        acceptance_lengths=[accepted + 1 for accepted in drafted.accepted_per_round] if drafted else None,
        draft_forwards=drafted.draft_forwards if drafted else None,
        own_sample_disagreements=stats.own_sample_disagreements if stats else None,
        ttft_ms=None if outcome.ttft_s is None else outcome.ttft_s * 1000,
        latency_ms=outcome.latency_s * 1000,
    )
