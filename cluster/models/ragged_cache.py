"""A key–value cache whose rows have their own lengths.

Entry ``s`` of a row is the token at absolute position ``s``, so a row's length lives with the caller and nothing is
ever cropped: entries beyond it are garbage that the next write at those positions replaces and that the mask hides
(a query never sees a position beyond its own block). Rows are slots ``0 .. rows - 1`` of one pool per layer; a forward
works on a contiguous window of them, so keys and values are returned as views, never as copies.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_GROWTH_TOKENS = 128


class RaggedCache:
    """Keys and values ``[rows, kv_heads, capacity, head_dim]`` per layer, written at per-row positions.

    It has the one method that `transformers` attention layers call, ``update``; call :meth:`window` before a forward to
    say which rows and positions it is about.
    """

    def __init__(self, layers: int, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self._keys: list[Tensor | None] = [None] * layers
        self._values: list[Tensor | None] = [None] * layers
        self._rows = self._capacity = 0
        self._first = self._visible = 0
        self._positions = self._row_index = torch.empty(0, 0, dtype=torch.int64)

    @property
    def bytes_per_row(self) -> int:
        """Memory of one row at the present capacity."""
        tensors = [t for t in (*self._keys, *self._values) if t is not None]
        return sum(t[0].numel() * t.element_size() for t in tensors)

    def window(self, first_row: int, positions: Tensor, visible_tokens: int) -> None:
        """Announce a forward over rows ``first_row .. first_row + n - 1``.

        Args:
            first_row: the first slot of the window.
            positions: ``[n, T]`` int64, where each row's T new entries go.
            visible_tokens: how many entries, counted from 0, attention gets to see (and the mask has columns for).
        """
        self._first, self._positions, self._visible = first_row, positions, visible_tokens
        self._row_index = torch.arange(positions.shape[0], device=positions.device)[:, None]  # [n, 1]
        self._rows = max(self._rows, first_row + positions.shape[0])
        if visible_tokens > self._capacity:
            self._capacity = -(-visible_tokens // _GROWTH_TOKENS) * _GROWTH_TOKENS

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write ``[n, kv_heads, T, head_dim]`` at the announced positions; return views of the visible prefix.

        Returns:
            keys and values ``[n, kv_heads, visible_tokens, head_dim]``.
        """
        return self._store(self._keys, key, layer_idx), self._store(self._values, value, layer_idx)

    @torch.inference_mode()  # the pool is made inside a forward; a row may also move between two of them
    def move_row(self, source: int, target: int) -> None:
        """Copy row ``source`` over row ``target`` (a finished one), to keep the live rows contiguous."""
        for pool in (self._keys, self._values):
            for tensor in pool:
                if tensor is not None:
                    tensor[target].copy_(tensor[source])

    @torch.inference_mode()
    def clear_row(self, row: int) -> None:
        """Zero a row that may hold NaN: a hidden entry gets weight 0, but 0 times NaN is NaN for the row's next user."""
        for pool in (self._keys, self._values):
            for tensor in pool:
                if tensor is not None:
                    tensor[row].zero_()

    def _store(self, pool: list[Tensor | None], new: Tensor, layer: int) -> Tensor:
        tensor = self._fitted(pool[layer], new)
        pool[layer] = tensor
        rows = self._positions.shape[0]
        live = tensor[self._first : self._first + rows]  # [n, H, S, D]
        live[self._row_index, :, self._positions] = new.transpose(1, 2).to(tensor.dtype)
        return live[:, :, : self._visible]

    def _fitted(self, tensor: Tensor | None, like: Tensor) -> Tensor:
        """The layer's pool, grown to the present rows and capacity."""
        heads, head_dim = like.shape[1], like.shape[3]
        if tensor is None:
            return torch.zeros(self._rows, heads, self._capacity, head_dim, dtype=self.dtype, device=self.device)
        if tensor.shape[0] >= self._rows and tensor.shape[2] >= self._capacity:
            return tensor
        rows, capacity = max(self._rows, tensor.shape[0]), max(self._capacity, tensor.shape[2])
        grown = torch.zeros(rows, heads, capacity, head_dim, dtype=self.dtype, device=self.device)
        grown[: tensor.shape[0], :, : tensor.shape[2]] = tensor
        return grown
