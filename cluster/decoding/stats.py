"""What one request cost and how its drafts fared, in the field's counter names.

Only counters and sums are kept here; the rates that follow from them are computed once, in ``analysis``.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class RequestStats:
    """Counters of one request, filled round by round.

    Attributes:
        accepted_per_round: drafted tokens accepted in each round that proposed any.
        proposed_per_round: drafted tokens proposed in each of those rounds.
        required_margins: per such round, the required margin in nats of each drafted position up to and including the
            first one that is not the verifier's own sample; ``inf`` outside the truncated law. From a lossless run these
            tell what every other margin would have accepted there.
        draft_forwards: realised denoising passes. verifier_forwards: rounds, and one for the prefill,
            which gives the first token.
        own_sample_disagreements: emitted tokens that are not the verifier's own sample.
        regret_nats, nll_nats: sums over the emitted tokens, under the verifier's processed law.
        ttft_s, latency_s: seconds from submission to the first token and to the end; None until they happen.
        draft_time_s, verify_time_s: the request's share (one part per row of the batch) of the time in the two models.
    """

    accepted_per_round: list[int] = field(default_factory=list)
    proposed_per_round: list[int] = field(default_factory=list)
    required_margins: list[list[float]] = field(default_factory=list)
    draft_forwards: int = 0
    verifier_forwards: int = 0
    own_sample_disagreements: int = 0
    regret_nats: float = 0.0
    nll_nats: float = 0.0
    ttft_s: float | None = None
    latency_s: float | None = None
    draft_time_s: float = 0.0
    verify_time_s: float = 0.0
    prefill_time_s: float = 0.0

    @property
    def num_spec_rounds(self) -> int:
        return len(self.accepted_per_round)

    @property
    def num_draft_tokens(self) -> int:
        return sum(self.proposed_per_round)

    @property
    def num_accepted_draft_tokens(self) -> int:
        return sum(self.accepted_per_round)

    def acceptance_histogram(self, block: int) -> list[int]:
        """Index j counts the rounds that accepted exactly j drafted tokens; length ``block + 1``."""
        counts = [0] * (block + 1)
        for accepted in self.accepted_per_round:
            counts[accepted] += 1
        return counts
