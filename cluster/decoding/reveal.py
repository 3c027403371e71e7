"""Which masked positions a denoising pass reveals. The choice looks only at the laws, never at sampled values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cluster.decoding.effort import Effort


def quota(masked: int, passes: int, done: int) -> int:
    """Positions that pass ``done`` (from 0) of ``passes`` reveals out of ``masked``: equal shares, early ones larger."""
    return masked // passes + (1 if done < masked % passes else 0)


def choose(masked: Tensor, confidence: Tensor, length: Tensor, efforts: Sequence[Effort], done: int) -> Tensor:
    """The positions to reveal in this pass.

    Args:
        masked: ``[B, K]`` bool, positions still to be revealed.
        confidence: ``[B, K]`` float32, max probability of each position's law.
        length: ``[B]`` int64, drafted tokens of each row; ``masked`` is False beyond.
        efforts: one per row.
        done: passes already run for the block.

    Returns:
        ``[B, K]`` bool, a subset of ``masked``.
    """
    batch, block = masked.shape
    priority = torch.empty_like(confidence)
    counts = torch.empty(batch, dtype=torch.int64, device=masked.device)
    in_order = -torch.arange(block, dtype=confidence.dtype, device=masked.device)
    for b, effort in enumerate(efforts):
        priority[b] = in_order if effort.reveal == "left_to_right" else confidence[b]
        if effort.reveal == "threshold" and done + 1 < effort.passes:
            above = confidence[b] >= float(effort.value or 0.0)
            counts[b] = (above & masked[b]).sum().clamp_min(1)
        elif effort.reveal == "threshold" or done + 1 >= effort.passes:
            counts[b] = block
        else:
            total = int(length[b])
            counts[b] = quota(total, min(effort.passes, max(total, 1)), done)
    order = priority.masked_fill(~masked, float("-inf")).argsort(dim=1, descending=True, stable=True)
    rank = order.argsort(dim=1)
    return (rank < counts[:, None]) & masked
