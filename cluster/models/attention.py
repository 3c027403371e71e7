"""Attention over the ragged cache: grouped queries against the cached heads, without repeating keys and values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

NAME = "specfrontier"


def block_mask(positions: Tensor, visible_tokens: int, dtype: torch.dtype) -> Tensor:
    """Additive mask that lets a query see cached positions up to a per-query limit.

    Args:
        positions: ``[B, T]`` int64, the last position each query may see (its own for causal attention, the block's last
            for bidirectional attention within a block).
        visible_tokens: S, the number of cached positions.
        dtype: of the scores the mask is added to.

    Returns:
        ``[B, 1, T, S]``: 0 where visible, the dtype's lowest value elsewhere.
    """
    cached = torch.arange(visible_tokens, device=positions.device)
    hidden = cached[None, None, None, :] > positions[:, None, :, None]
    return torch.zeros(hidden.shape, dtype=dtype, device=positions.device).masked_fill_(hidden, torch.finfo(dtype).min)


def grouped_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Softmax attention with fewer key heads than query heads.

    Args:
        query: ``[B, H, T, D]``; key, value: ``[B, G, S, D]`` with H a multiple of G; mask: ``[B, 1, T, S]`` or None.

    Returns:
        ``[B, T, H, D]``. Query heads of one group are stacked along T, so keys and values are read once and never copied.
    """
    batch, heads, width, dim = query.shape
    groups = key.shape[1]
    stacked = query.reshape(batch, groups, heads // groups * width, dim)
    if mask is not None and heads != groups:
        repeated = mask[:, :, None].expand(batch, 1, heads // groups, width, mask.shape[-1])
        mask = repeated.reshape(batch, 1, heads // groups * width, -1)
    out = nn.functional.scaled_dot_product_attention(stacked, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(batch, heads, width, dim).transpose(1, 2)


def _transformers_attention(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return grouped_attention(query, key, value, attention_mask, scaling), None


def register() -> str:
    """Make the attention known to `transformers`; returns the name to pass as ``attn_implementation``."""
    AttentionInterface.register(NAME, _transformers_attention)
    AttentionMaskInterface.register(NAME, eager_mask)
    return NAME
