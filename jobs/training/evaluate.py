"""Held-out acceptance during training, teacher-forced: drafts from true contexts, matched with the greedy answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cluster.decoding import Effort, Sampling, denoise
from cluster.models.dflash import DFlashModel
from jobs.training.blocks import block_hidden
from jobs.training.data import FeatureStore, TrainingSequence


@torch.no_grad()
def held_out_acceptance(
    model: DFlashModel,
    embedding: Tensor,
    head: Tensor,
    store: FeatureStore,
    sequences: Sequence[TrainingSequence],
    passes: Sequence[int],
    anchors_per_sequence: int = 16,
) -> dict[str, dict[int, float]]:
    """Mean acceptance length (bonus counted) per kind and number of passes, over evenly spaced anchors.

    Args:
        embedding: ``[V, hidden]``; head: ``[V_d, hidden]``, as the drafter uses them (bfloat16: mixed precision).
        sequences: greedy ones are used, sampled ones skipped.
    """
    block = model.config.block_size - 1
    device = embedding.device
    lengths: dict[tuple[str, int], list[int]] = defaultdict(list)
    for sequence in (s for s in sequences if s.greedy):
        ids = torch.tensor(sequence.ids, device=device)
        candidates = torch.arange(sequence.prompt_len, len(ids) - 1, device=device)
        anchors = candidates[:: max(1, len(candidates) // anchors_per_sequence)]
        features = store.get(sequence)[0].to(device, embedding.dtype)
        length = (len(ids) - 1 - anchors).clamp_max(block)

        def forward(
            tokens: Tensor, ids: Tensor = ids, anchors: Tensor = anchors, features: Tensor = features
        ) -> Tensor:
            embedded = nn.functional.embedding(torch.cat([ids[anchors][:, None], tokens], dim=1), embedding)
            with torch.autocast(device.type, torch.bfloat16, enabled=embedding.dtype == torch.bfloat16):
                return block_hidden(model, embedded, anchors, features)[:, 1:].to(head.dtype) @ head.T

        for count in passes:
            efforts = [Effort(block, count)] * len(anchors)
            draft = denoise(
                forward, length, anchors, [Sampling()] * len(anchors), efforts, model.token_ids(),
                model.config.mask_token_id,
            )  # fmt: skip
            slots = torch.arange(draft.tokens.shape[1], device=device)
            truth = ids[(anchors[:, None] + 1 + slots).clamp_max(len(ids) - 1)]
            right = (draft.tokens == truth) & (slots < length[:, None])
            lengths[sequence.kind, count] += (right.long().cumprod(dim=1).sum(dim=1) + 1).tolist()
    result: dict[str, dict[int, float]] = defaultdict(dict)
    for (kind, count), values in sorted(lengths.items()):
        result[kind][count] = sum(values) / len(values)
    return dict(result)
