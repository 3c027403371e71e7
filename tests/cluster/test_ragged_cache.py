"""The ragged cache: entries go to their positions, rows are apart, growth keeps what was written."""

import pytest
import torch
from torch import Tensor

from cluster.models.ragged_cache import RaggedCache


def entries(*values: list[float]) -> Tensor:
    """``[n, 1, T, 1]`` from one list per row."""
    return torch.tensor(values)[:, None, :, None]


def cache(layers: int = 1) -> RaggedCache:
    return RaggedCache(layers, torch.float32, torch.device("cpu"))


def write(
    target: RaggedCache, first_row: int, positions: list[list[int]], values: Tensor, visible: int, layer: int = 0
) -> list[list[float]]:
    """Write the same keys and (negated) values; the visible keys of each row."""
    target.window(first_row, torch.tensor(positions), visible)
    keys, negated = target.update(values, -values, layer)
    assert torch.equal(negated, -keys)
    return keys[:, 0, :, 0].tolist()


class TestWrite:
    def test_each_row_is_written_at_its_own_positions(self) -> None:
        pool = cache()
        seen = write(pool, 0, [[0, 1], [2, 3]], entries([1, 2], [3, 4]), 4)
        assert seen == [[1, 2, 0, 0], [0, 0, 3, 4]]

    def test_rejected_entries_are_overwritten(self) -> None:
        pool = cache()
        write(pool, 0, [[0, 1, 2]], entries([1, 2, 3]), 3)
        assert write(pool, 0, [[1, 2]], entries([8, 9]), 3) == [[1, 8, 9]]

    def test_a_window_leaves_other_rows_alone(self) -> None:
        pool = cache()
        write(pool, 0, [[0, 1], [0, 1], [0, 1]], entries([1, 2], [3, 4], [5, 6]), 2)
        write(pool, 1, [[1]], entries([9]), 2)
        assert write(pool, 0, [[0], [0], [0]], entries([1], [3], [5]), 2) == [[1, 2], [3, 9], [5, 6]]

    def test_layers_are_apart(self) -> None:
        pool = cache(layers=2)
        write(pool, 0, [[0]], entries([1]), 1, layer=0)
        write(pool, 0, [[0]], entries([2]), 1, layer=1)
        assert write(pool, 0, [[1]], entries([3]), 2, layer=0) == [[1, 3]]

    def test_returns_views_not_copies(self) -> None:
        pool = cache()
        pool.window(0, torch.tensor([[0, 1]]), 2)
        keys, _ = pool.update(entries([1, 2]), entries([-1, -2]), 0)
        write(pool, 0, [[0]], entries([7]), 2)
        assert keys[0, 0, 0, 0] == 7

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_keeps_the_dtype_of_the_pool(self, dtype: torch.dtype) -> None:
        pool = RaggedCache(1, dtype, torch.device("cpu"))
        pool.window(0, torch.tensor([[0]]), 1)
        assert pool.update(entries([1]), entries([1]), 0)[0].dtype == dtype


class TestGrowth:
    def test_more_tokens_keep_what_was_written(self) -> None:
        pool = cache()
        write(pool, 0, [[0, 1]], entries([1, 2]), 2)
        seen = write(pool, 0, [[500]], entries([5]), 501)
        assert seen[0][:2] == [1, 2]
        assert seen[0][500] == 5
        assert sum(seen[0]) == 8

    def test_more_rows_keep_what_was_written(self) -> None:
        pool = cache()
        write(pool, 0, [[0, 1]], entries([1, 2]), 2)
        write(pool, 5, [[0, 1]], entries([3, 4]), 2)
        assert write(pool, 0, [[1]] * 6, entries(*[[9.0]] * 6), 2) == [[1, 9], *[[0, 9]] * 4, [3, 9]]

    def test_a_layer_that_missed_a_growth_catches_up(self) -> None:
        pool = cache(layers=2)
        write(pool, 0, [[0]], entries([1]), 1, layer=0)
        write(pool, 0, [[0]], entries([2]), 1, layer=1)
        write(pool, 3, [[300]], entries([3]), 301, layer=0)
        assert write(pool, 0, [[1]], entries([4]), 2, layer=1) == [[2, 4]]

    def test_memory_per_row_counts_keys_and_values_of_all_layers(self) -> None:
        pool = cache(layers=2)
        assert pool.bytes_per_row == 0
        for layer in range(2):
            write(pool, 0, [[0]], entries([1]), 1, layer)
        assert pool.bytes_per_row == 2 * 2 * 128 * 4


class TestMoveRow:
    def test_copies_a_row_over_another(self) -> None:
        pool = cache(layers=2)
        for layer in range(2):
            write(pool, 0, [[0, 1], [0, 1], [0, 1]], entries([1, 2], [3, 4], [5, 6]), 2, layer)
        pool.move_row(2, 0)
        for layer in range(2):
            assert write(pool, 0, [[0], [0], [0]], entries([5], [3], [5]), 2, layer) == [[5, 6], [3, 4], [5, 6]]

    def test_between_two_forwards(self) -> None:
        """Forwards run in inference mode; a cancelled request's row is replaced outside of it."""
        pool = cache()
        with torch.inference_mode():
            write(pool, 0, [[0], [0]], entries([1], [2]), 1)
        pool.move_row(1, 0)
        with torch.inference_mode():
            assert write(pool, 1, [[0]], entries([3]), 1) == [[3]]

    def test_in_an_empty_pool_does_nothing(self) -> None:
        cache().move_row(1, 0)


class TestClearRow:
    def test_leaves_no_nan_behind(self) -> None:
        pool = cache(layers=2)
        for layer in range(2):
            write(pool, 0, [[0, 1], [0, 1]], entries([1, 2], [3, 4]), 2, layer)
            pool.window(1, torch.tensor([[1]]), 2)
            pool.update(entries([float("nan")]), entries([float("nan")]), layer)
        pool.clear_row(1)
        for layer in range(2):
            assert write(pool, 0, [[0], [0]], entries([1], [0]), 2, layer) == [[1, 2], [0, 0]]
