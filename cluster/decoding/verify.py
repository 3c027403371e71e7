"""The verification of one draft block: own samples, required margins, acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cluster.decoding.leniency import RULES, Leniency
from cluster.decoding.sampling import Sampling, add_noise, process_logits

_TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Verdict:
    """What a verification forward decided, for B rows and blocks of up to K drafted tokens.

    Attributes:
        accepted: ``[B]`` int64, drafted tokens committed, 0 .. length.
        own: ``[B, K + 1]`` int64, the verifier's own sample at each position, given the draft before it.
        required_margin: ``[B, K]`` float32, the least margin (nats) that accepts the drafted token: 0 iff it is the own
            sample, ``inf`` if it lies outside the verifier's truncated law or beyond the row's draft length.
        regret: ``[B, K + 1]`` float32, max log p − log p(emitted) at each committed position, 0 beyond.
        nll: ``[B, K + 1]`` float32, −log p(emitted) under the processed law, 0 beyond.
        failed: ``[B]`` bool, rows whose logits are NaN or all −inf at a position to be committed: nothing of them may
            be. What follows a rejected token is not judged: it depends on the draft and the padding, not on the row.
    """

    accepted: Tensor
    own: Tensor
    required_margin: Tensor
    regret: Tensor
    nll: Tensor
    failed: Tensor


def required_margins(perturbed: Tensor, draft: Tensor, own: Tensor) -> Tensor:
    """How much margin each drafted token needs; ``perturbed [B, K, V]``, ``draft, own [B, K]`` -> ``[B, K]`` float32.

    ``max_x(log p(x) + g(x)) − (log p(D) + g(D))``; exactly 0 for the own sample and never 0 for another token, so that
    margin 0 means token-identical even where two tokens tie.
    """
    best = perturbed.gather(-1, own[..., None])[..., 0]  # [B, K]
    drafted = perturbed.gather(-1, draft[..., None])[..., 0]  # [B, K]
    return torch.where(draft == own, 0.0, (best - drafted).clamp_min(_TINY))


def accepted_prefix(required_margin: Tensor, leniencies: Sequence[Leniency], length: Tensor) -> Tensor:
    """Drafted tokens accepted before the first refusal; ``[B, K]``, one rule per row, ``length [B]`` -> ``[B]`` int64."""
    accept = torch.stack([RULES[r.rule].accept(required_margin[b], r.value) for b, r in enumerate(leniencies)])
    slots = torch.arange(required_margin.shape[1], device=length.device)
    return (accept & (slots < length[:, None])).long().cumprod(dim=1).sum(dim=1)


def verify_block(
    logits: Tensor,
    draft: Tensor,
    length: Tensor,
    anchor_positions: Tensor,
    samplings: Sequence[Sampling],
    leniencies: Sequence[Leniency],
) -> Verdict:
    """Judge one block per row.

    Args:
        logits: ``[B, K + 1, V]``, the verifier's logits after the anchor and after each drafted token.
        draft: ``[B, K]`` int64 drafted tokens; entries beyond ``length`` are ignored.
        length: ``[B]`` int64, drafted tokens of each row, 0 .. K (0 is plain autoregressive decoding).
        anchor_positions: ``[B]`` int64, the anchor's absolute position; slot j decides position anchor + 1 + j.
        samplings, leniencies: one per row.
    """
    _, width, vocabulary = logits.shape
    slots = torch.arange(width, device=logits.device)
    scores = process_logits(logits, samplings)
    top = scores.amax(dim=-1)  # [B, K+1]; NaN wherever one of the scores is
    token_ids = torch.arange(vocabulary, device=logits.device)
    perturbed = add_noise(scores, samplings, anchor_positions[:, None] + 1 + slots, token_ids)  # [B, K+1, V]
    own = perturbed.argmax(dim=-1)  # [B, K+1]
    margins = required_margins(perturbed[:, :-1], draft, own[:, :-1])
    margins = margins.masked_fill(slots[:-1] >= length[:, None], float("inf"))
    accepted = accepted_prefix(margins, leniencies, length)
    emitted = emitted_tokens(draft, own, accepted)
    emitted_score = scores.gather(-1, emitted[..., None])[..., 0]  # [B, K+1]
    beyond = slots > accepted[:, None]
    return Verdict(
        accepted=accepted,
        own=own,
        required_margin=margins,
        regret=(top - emitted_score).masked_fill(beyond, 0.0),
        nll=(scores.logsumexp(dim=-1) - emitted_score).masked_fill(beyond, 0.0),
        failed=(~torch.isfinite(top) & ~beyond).any(dim=-1),
    )


def emitted_tokens(draft: Tensor, own: Tensor, accepted: Tensor) -> Tensor:
    """``[B, K + 1]``: the accepted drafted tokens, then the verifier's own token; what follows is meaningless."""
    slots = torch.arange(own.shape[1], device=own.device)
    padded = torch.nn.functional.pad(draft, (0, 1))
    return torch.where(slots < accepted[:, None], padded, own)
