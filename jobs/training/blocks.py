"""Training blocks: which slots are masked, how blocks attend, what they should predict.

All blocks of one sequence share its context, so a step is one forward over ``N`` blocks of ``K + 1`` slots: a block sees
the context strictly before its anchor, and itself; blocks do not see each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cluster.models.dflash import DFlashModel


@dataclass(frozen=True)
class Blocks:
    """N training blocks of one sequence.

    Attributes:
        anchors: ``[N]`` int64, absolute positions.
        ids: ``[N, K + 1]`` int64, the anchor and the true tokens (anything beyond the sequence's end).
        masked: ``[N, K + 1]`` bool, slots fed as mask; slot 0 never.
        scored: ``[N, K + 1]`` bool, masked slots inside the sequence: the ones with a loss.
    """

    anchors: Tensor
    ids: Tensor
    masked: Tensor
    scored: Tensor


def sample_blocks(
    ids: Tensor, prompt_len: int, block: int, count: int, shares: tuple[float, float, float], rng: torch.Generator
) -> Blocks:
    """Blocks at random anchors in the answer.

    Args:
        ids: ``[S]`` int64, the sequence.
        prompt_len: anchors start at the answer's first token.
        block: K, drafted tokens per block.
        count: most blocks.
        shares: of blocks that are fully masked, have a revealed prefix, have a random share revealed.
        rng: a CPU generator.
    """
    candidates = torch.arange(prompt_len, ids.shape[0] - 1)
    anchors = candidates[torch.randperm(len(candidates), generator=rng)[:count]]
    positions = anchors[:, None] + torch.arange(block + 1)  # [N, K+1]
    inside = positions < ids.shape[0]
    masked = _mask(len(anchors), block, shares, rng)
    return Blocks(anchors, ids[positions.clamp_max(ids.shape[0] - 1)], masked, masked & inside)


def _mask(count: int, block: int, shares: tuple[float, float, float], rng: torch.Generator) -> Tensor:
    """``[N, K + 1]`` bool: masked slots by the three block kinds; every block keeps at least one masked slot."""
    kind = torch.multinomial(torch.tensor(shares), count, replacement=True, generator=rng)
    slot = torch.arange(1, block + 1)
    prefix = torch.randint(1, block, (count, 1), generator=rng)
    revealed_prefix = slot <= prefix
    share = torch.rand(count, 1, generator=rng)
    revealed_random = torch.rand(count, block, generator=rng) < share
    revealed_random[torch.arange(count), torch.randint(0, block, (count,), generator=rng)] = False
    revealed = (revealed_prefix & (kind == 1)[:, None]) | (revealed_random & (kind == 2)[:, None])
    return nn.functional.pad(~revealed, (1, 0), value=False)


def block_hidden(model: DFlashModel, embedded: Tensor, anchors: Tensor, features: Tensor) -> Tensor:
    """Hidden states ``[N, K + 1, hidden]`` of embedded blocks ``[N, K + 1, hidden]`` over one context ``[S, F]``."""
    device = embedded.device
    context_positions = torch.arange(features.shape[0], device=device)[None]
    context = model.context(features[None], context_positions)
    hidden_context = context_positions >= anchors[:, None]  # [N, S]

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        count, heads, width, dim = query.shape
        groups = key.shape[1]
        stacked = query.reshape(count, groups, heads // groups * width, dim)
        context_key, context_value = context[layer]  # [1, G, S, D]
        length = context_key.shape[2]
        flat = stacked.transpose(0, 1).flatten(1, 2)  # [G, N*R*T, D]
        far = (flat @ context_key[0].transpose(1, 2)).view(groups, count, -1, length).transpose(0, 1)
        near = stacked @ key.transpose(2, 3)  # [N, G, R*T, T]
        far = far.float().masked_fill(hidden_context[:, None, None], float("-inf"))
        weights = (torch.cat([far, near.float()], dim=-1) * dim**-0.5).softmax(dim=-1).to(value.dtype)
        far_weights = weights[..., :length].transpose(0, 1).flatten(1, 2)  # [G, N*R*T, S]
        out = (far_weights @ context_value[0]).view(groups, count, -1, dim).transpose(0, 1)
        out = out + weights[..., length:] @ value
        attended: Tensor = out.reshape(count, heads, width, dim).transpose(1, 2)
        return attended

    positions = anchors[:, None] + torch.arange(embedded.shape[1], device=device)
    hidden: Tensor = model(embedded, positions, attend)
    return hidden


def block_loss(
    logits: Tensor, blocks: Blocks, teacher: Tensor, draft_index: Tensor, decay: float, teacher_share: float
) -> Tensor:
    """Weighted cross-entropy on the scored slots.

    Args:
        logits: ``[M, V_d]`` for the M scored slots, in the order of ``blocks.scored.nonzero()``.
        blocks: the blocks.
        teacher: ``[S, V_d]`` log-probabilities, the verifier's law of the *next* token at each position.
        draft_index: ``[V]`` int64, a token's column in the draft vocabulary, −1 outside.
        decay: slot k weighs exp(−(k − 1) / decay) (arXiv 2602.06036).
        teacher_share: weight of the verifier's law in the target; the rest is on the verifier's token.

    Returns:
        The mean over slots, in nats.
    """
    row, slot = blocks.scored.nonzero(as_tuple=True)  # [M], [M]
    position = blocks.anchors[row] + slot
    law = logits.float().log_softmax(dim=-1)
    column = draft_index[blocks.ids[row, slot]]
    known = column >= 0
    hard = -law.gather(1, column.clamp_min(0)[:, None])[:, 0]
    soft = -(teacher[position - 1].exp() * law).sum(dim=-1)
    loss = torch.where(known, teacher_share * soft + (1 - teacher_share) * hard, teacher_share * soft)
    weight = torch.exp(-(slot - 1).float() / decay)
    return (loss * weight).sum() / weight.sum()
