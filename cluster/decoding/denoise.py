"""The denoising loop: from a fully masked block to a draft, in the passes that each row's effort allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cluster.decoding.effort import Effort
from cluster.decoding.reveal import choose
from cluster.decoding.sampling import Sampling, add_noise, process_logits

BlockForward = Callable[[Tensor], Tensor]
"""``forward(block_ids [B, K] with mask ids at unrevealed slots) -> logits [B, K, V]`` over ``token_ids``."""


@dataclass(frozen=True)
class DraftBlock:
    """A drafted block per row.

    Attributes:
        tokens: ``[B, K]`` int64 vocabulary ids.
        length: ``[B]`` int64, how many of them the row proposes.
        reveal_step: ``[B, K]`` int64, the pass (from 0) that revealed each position; −1 beyond the length.
        forwards: ``[B]`` int64, passes that the row paid for.
    """

    tokens: Tensor
    length: Tensor
    reveal_step: Tensor
    forwards: Tensor


def denoise(
    forward: BlockForward,
    length: Tensor,
    anchor_positions: Tensor,
    samplings: Sequence[Sampling],
    efforts: Sequence[Effort],
    token_ids: Tensor,
    mask_id: int,
) -> DraftBlock:
    """Draft one block per row.

    Args:
        forward: one drafter pass over the block.
        length: ``[B]`` int64, tokens to draft per row, 0 .. K; a row of length 0 costs nothing of its own.
        anchor_positions: ``[B]`` int64; slot j drafts absolute position anchor + 1 + j.
        samplings: one per row; a sampled row draws with the verifier's own noise, which couples the two.
        efforts: one per row; the block's width K is the largest length.
        token_ids: ``[V]`` int64, the vocabulary id of each column of the logits.
        mask_id: the id fed in unrevealed slots.
    """
    batch, block = length.shape[0], int(length.max())
    device = length.device
    slots = torch.arange(block, device=device)
    masked = slots < length[:, None]  # [B, K]
    tokens = torch.full((batch, block), mask_id, dtype=torch.int64, device=device)
    reveal_step = torch.full((batch, block), -1, dtype=torch.int64, device=device)
    forwards = torch.zeros(batch, dtype=torch.int64, device=device)
    positions = anchor_positions[:, None] + 1 + slots
    done = 0
    while bool(masked.any()):
        scores = process_logits(forward(tokens), samplings)  # [B, K, V]
        drawn = token_ids[add_noise(scores, samplings, positions, token_ids).argmax(dim=-1)]  # [B, K]
        confidence = (scores.amax(dim=-1) - scores.logsumexp(dim=-1)).exp()
        forwards += masked.any(dim=1)
        chosen = choose(masked, confidence, length, efforts, done)
        tokens = torch.where(chosen, drawn, tokens)
        reveal_step = reveal_step.masked_fill(chosen, done)
        masked &= ~chosen
        done += 1
    return DraftBlock(tokens, length, reveal_step, forwards)
