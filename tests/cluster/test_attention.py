"""Masks and grouped attention against the plain formula."""

import pytest
import torch
from torch import Tensor

from cluster.models.attention import block_mask, grouped_attention


def naive(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Softmax attention with keys and values repeated for every query head."""
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    scores = query @ key.transpose(-1, -2) * scaling
    weights = (scores if mask is None else scores + mask).softmax(dim=-1)
    return (weights @ value).transpose(1, 2)


def tensors(heads: int, groups: int, width: int, cached: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(heads * 100 + groups)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng).to(dtype)

    return draw(3, heads, width, 8), draw(3, groups, cached, 8), draw(3, groups, cached, 8)


class TestBlockMask:
    LOWEST = torch.finfo(torch.float32).min

    def test_a_query_sees_up_to_its_own_position(self) -> None:
        mask = block_mask(torch.tensor([[1, 2], [0, 1]]), 4, torch.float32)
        hidden = (mask == self.LOWEST).long()
        assert hidden.tolist() == [[[[0, 0, 1, 1], [0, 0, 0, 1]]], [[[0, 1, 1, 1], [0, 0, 1, 1]]]]

    def test_visible_entries_add_nothing(self) -> None:
        assert block_mask(torch.tensor([[3]]), 4, torch.float32).tolist() == [[[[0.0, 0.0, 0.0, 0.0]]]]

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_has_the_dtype_asked_for(self, dtype: torch.dtype) -> None:
        mask = block_mask(torch.tensor([[0]]), 2, dtype)
        assert mask.dtype == dtype
        assert mask[0, 0, 0, 1] == torch.finfo(dtype).min


class TestGroupedAttention:
    @pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (4, 1), (9, 3)])
    @pytest.mark.parametrize("width", [1, 5])
    def test_equals_repeated_keys_and_values(self, heads: int, groups: int, width: int) -> None:
        query, key, value = tensors(heads, groups, width, 11, torch.float32)
        mask = block_mask(torch.arange(width)[None] + torch.tensor([[0], [3], [6]]), 11, torch.float32)
        ours = grouped_attention(query, key, value, mask, 0.3)
        assert ours.shape == (3, width, heads, 8)
        assert torch.allclose(ours, naive(query, key, value, mask, 0.3), atol=1e-5)

    def test_without_a_mask(self) -> None:
        query, key, value = tensors(4, 2, 3, 6, torch.float32)
        assert torch.allclose(
            grouped_attention(query, key, value, None, 0.5), naive(query, key, value, None, 0.5), atol=1e-5
        )

    def test_in_bfloat16(self) -> None:
        query, key, value = tensors(4, 2, 3, 6, torch.bfloat16)
        mask = block_mask(torch.tensor([[2, 3, 5]] * 3), 6, torch.bfloat16)
        ours = grouped_attention(query, key, value, mask, 0.35)
        assert ours.dtype == torch.bfloat16
        reference = naive(query.float(), key.float(), value.float(), mask.float(), 0.35)
        assert torch.allclose(ours.float(), reference, atol=0.03)

    def test_hidden_entries_do_not_count(self) -> None:
        query, key, value = tensors(4, 2, 2, 8, torch.float32)
        mask = block_mask(torch.tensor([[2, 3]] * 3), 8, torch.float32)
        before = grouped_attention(query, key, value, mask, 1.0)
        key[:, :, 4:], value[:, :, 4:] = 1e4, -1e4
        assert torch.equal(grouped_attention(query, key, value, mask, 1.0), before)

    def test_takes_views_of_a_larger_pool(self) -> None:
        query, key, value = tensors(4, 2, 2, 8, torch.float32)
        mask = block_mask(torch.tensor([[2, 4]] * 3), 5, torch.float32)
        ours = grouped_attention(query, key[:, :, :5], value[:, :, :5], mask, 1.0)
        copied = grouped_attention(query, key[:, :, :5].clone(), value[:, :, :5].clone(), mask, 1.0)
        assert torch.allclose(ours, copied, atol=1e-6)
