"""A DFlash drafter at work: its context cache, its denoising passes, its replies to the engine's draft calls."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from cluster.decoding import denoise
from cluster.messages import ContextUpdate, DraftCall, DraftReply, RowMove
from cluster.models.attention import block_mask, grouped_attention
from cluster.models.dflash import DFlashModel
from cluster.models.ragged_cache import RaggedCache


class BlockDrafter:
    """Drafts blocks with a :class:`DFlashModel`; the in-process :class:`cluster.messages.DraftPort`.

    Args:
        model: the network.
        embedding: the verifier's token embedding ``[V, hidden]``.
        head: the verifier's output head ``[V, hidden]``; only the rows of the draft vocabulary are kept.
    """

    def __init__(self, model: DFlashModel, embedding: Tensor, head: Tensor) -> None:
        config = model.config
        self.model = model.eval()
        weight = model.fc.weight
        self.dtype, self.device = weight.dtype, weight.device
        self.max_block = config.block_size - 1
        self.context_tokens = config.max_position_embeddings
        ids = model.token_ids()
        self.token_ids = ids[ids < head.shape[0]]  # heads of one tokenizer may be padded to different sizes
        self._embedding = embedding.to(self.device, self.dtype)
        self._head = head.to(self.device, self.dtype)[self.token_ids].contiguous()  # [V_d, hidden]
        self.cache = RaggedCache(config.num_hidden_layers, self.dtype, self.device)

    @torch.inference_mode()
    def draft(self, call: DraftCall) -> DraftReply:
        """Replay what happened to the rows, then draft one block per row."""
        started = time.perf_counter()
        for entry in call.journal:
            if isinstance(entry, RowMove):
                self.cache.move_row(entry.source, entry.target)
            else:
                self._add_context(entry)
        anchors = torch.tensor(call.anchors, device=self.device)
        first = torch.tensor(call.anchor_positions, device=self.device)
        lengths = torch.tensor(call.lengths, device=self.device)
        block = denoise(
            lambda tokens: self._forward(anchors, first, lengths, tokens),
            lengths,
            first,
            call.samplings,
            call.efforts,
            self.token_ids,
            self.model.config.mask_token_id,
        )
        rows = block.tokens.tolist()
        tokens = tuple(tuple(row[:n]) for row, n in zip(rows, call.lengths, strict=True))
        return DraftReply(tokens, tuple(block.forwards.tolist()), time.perf_counter() - started)

    def _add_context(self, update: ContextUpdate) -> None:
        """Write the keys and values of committed tokens; what is past a row's anchor is overwritten or hidden later."""
        features = update.features.to(self.device, self.dtype)  # [n, T, F]
        features = features.nan_to_num(0.0, 0.0, 0.0)  # a failed row's must not outlive it: the mask hides no NaN
        start = torch.tensor(update.first_positions, device=self.device)
        positions = start[:, None] + torch.arange(features.shape[1], device=self.device)  # [n, T]
        self.cache.window(update.first_row, positions, int(positions.max()) + 1)
        for layer, (key, value) in enumerate(self.model.context(features, positions)):
            self.cache.update(key, value, layer)

    def _forward(self, anchors: Tensor, first: Tensor, lengths: Tensor, tokens: Tensor) -> Tensor:
        """One pass: ``tokens [B, K]`` after ``anchors [B]`` at positions ``first [B]`` -> logits ``[B, K, V_d]``.

        A row sees its own block of ``lengths [B]`` tokens, not the slots that a longer neighbour adds to it.
        """
        ids = torch.cat([anchors[:, None], tokens], dim=1)  # [B, K+1]
        positions = first[:, None] + torch.arange(ids.shape[1], device=self.device)
        last = (first + lengths)[:, None].expand_as(positions)  # every slot sees the whole block
        visible = int(positions.max()) + 1
        mask = block_mask(last, visible, self.dtype)
        self.cache.window(0, positions, visible)

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            cached = self.cache.update(key, value, layer)
            return grouped_attention(query, *cached, mask, query.shape[-1] ** -0.5)

        embedded = nn.functional.embedding(ids, self._embedding)
        hidden = self.model(embedded, positions, attend)[:, 1:]  # slot 0 is the known anchor
        return nn.functional.linear(hidden, self._head)
