"""The autoregressive verifier: any decoder-only `transformers` model over a ragged key–value cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cluster.models.attention import block_mask
from cluster.models.ragged_cache import RaggedCache


class Verifier:
    """Runs blocks of tokens at per-row positions and returns logits and the chosen layers' features.

    Args:
        model: a `transformers` causal language model, loaded with our attention (see :mod:`cluster.models.loading`).
        feature_layers: decoder layers whose outputs the drafter is conditioned on; may be empty.
    """

    def __init__(self, model: Any, feature_layers: Sequence[int] = ()) -> None:
        self.model = model.eval()
        config = model.config
        layers: nn.ModuleList = model.get_decoder().layers
        wrong = [i for i in feature_layers if not 0 <= i < len(layers)]
        if wrong:
            raise ValueError(f"Expected feature layers in 0 .. {len(layers) - 1}, got {wrong}")
        self.vocab_size: int = config.vocab_size
        self.context_tokens: int = config.max_position_embeddings
        parameter = next(model.parameters())
        self.dtype, self.device = parameter.dtype, parameter.device
        self.cache = RaggedCache(len(layers), self.dtype, self.device)
        self._features: dict[int, Tensor] = {}
        self.feature_layers = tuple(feature_layers)
        for index in self.feature_layers:
            layers[index].register_forward_hook(self._capture(index))

    @property
    def feature_size(self) -> int:
        return len(self.feature_layers) * int(self.model.config.hidden_size)

    @torch.inference_mode()
    def forward(
        self, token_ids: Tensor, first_positions: Tensor, first_row: int = 0, logits_to_keep: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Run ``[n, T]`` tokens for rows ``first_row .. first_row + n - 1``.

        Args:
            token_ids: ``[n, T]`` int64.
            first_positions: ``[n]`` int64, the absolute position of each row's first token; all entries before it must
                hold that row's committed tokens.
            first_row: the first cache row.
            logits_to_keep: only the last so many positions get logits; 0 means all.

        Returns:
            logits ``[n, T or logits_to_keep, V]`` and features ``[n, T, feature_size]``, in the model's dtype.
        """
        width = token_ids.shape[1]
        positions = first_positions[:, None] + torch.arange(width, device=self.device)  # [n, T]
        visible = int(positions.max()) + 1
        self.cache.window(first_row, positions, visible)
        output = self.model(
            input_ids=token_ids,
            position_ids=positions,
            attention_mask=block_mask(positions, visible, self.dtype),
            cache=self.cache,
            use_cache=True,
            logits_to_keep=logits_to_keep,
        )
        features = [self._features.pop(i) for i in self.feature_layers]
        return output.logits, torch.cat(features, dim=-1) if features else output.logits.new_empty(*positions.shape, 0)

    @torch.inference_mode()
    def encode(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Whole sequences ``[n, T]`` at once, without the cache, as training needs them.

        Returns:
            features ``[n, T, feature_size]`` and the final normed hidden states ``[n, T, hidden]``.
        """
        positions = torch.arange(token_ids.shape[1], device=self.device).expand_as(token_ids)
        mask = block_mask(positions, token_ids.shape[1], self.dtype)
        output = self.model.get_decoder()(
            input_ids=token_ids, position_ids=positions, attention_mask=mask, use_cache=False
        )
        return torch.cat([self._features.pop(i) for i in self.feature_layers], dim=-1), output.last_hidden_state

    def _capture(self, index: int) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            self._features[index] = output[0] if isinstance(output, tuple) else output

        return hook
