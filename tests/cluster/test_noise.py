"""The noise: a pure function of (seed, position, token id), uniform, independent, the same everywhere."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cluster.decoding.noise import gumbel, uniform
from tests.cluster.toys import CHI_SQUARE_LIMIT, chi_square

SEEDS = st.integers(-(2**63), 2**63 - 1)
POSITIONS = st.integers(0, 2**31 - 1)
TOKENS = st.integers(0, 2**18)

GOLDEN = [
    [[4202647552, 1126050048, 3703492352], [3348618496, 2701648384, 2193385728]],
    [[1812313088, 1668037504, 395305472], [2023912832, 4052173056, 525571968]],
    [[977048192, 756588224, 1517362432], [2170814976, 1396211456, 3367301376]],
]


def draw(seeds: list[int], positions: list[list[int]], tokens: list[int]) -> Tensor:
    return uniform(torch.tensor(seeds), torch.tensor(positions), torch.tensor(tokens))


def reference(seed: int, position: int, token: int) -> float:
    """The hash in plain integers."""
    full = 0xFFFFFFFF

    def mix(x: int) -> int:
        x = ((x ^ x >> 16) * 0x7FEB352D) & full
        x = ((x ^ x >> 15) * 0x846CA68B) & full
        return x ^ x >> 16

    place = mix(position ^ 0x9E3779B9)
    first = mix(place ^ mix((seed & full) ^ 0x85EBCA6B))
    second = mix((first + mix((seed >> 32 & full) ^ 0xC2B2AE35)) & full)
    bits = mix((mix(token ^ mix(first ^ second)) + second) & full) & 0x7FFFFFFF
    value = (np.float32(bits) + np.float32(0.5)) * np.float32(2.0**-31)
    return min(float(value), 1 - 2**-24)


class TestUniform:
    def test_golden_values(self) -> None:
        """In units of 2**-32. Results on disk depend on them: they change only with a new version of the noise."""
        drawn = draw([0, 42, -1], [[0, 7], [1, 1000], [5, 123456]], [0, 1, 49151])
        assert (drawn.double() * 2**32).long().tolist() == GOLDEN

    @given(SEEDS, POSITIONS, TOKENS)
    @settings(max_examples=150, deadline=None)
    def test_equals_the_hash_in_plain_integers(self, seed: int, position: int, token: int) -> None:
        assert draw([seed], [[position]], [token]).item() == reference(seed, position, token)

    def test_lies_strictly_between_0_and_1(self) -> None:
        drawn = draw([3], [list(range(64))], list(range(4096)))
        assert drawn.min() > 0
        assert drawn.max() < 1

    def test_is_float32_of_the_announced_shape(self) -> None:
        drawn = draw([1, 2], [[0, 1, 2], [5, 6, 7]], [9, 8, 7, 6])
        assert drawn.dtype == torch.float32
        assert drawn.shape == (2, 3, 4)

    @given(st.lists(SEEDS, min_size=1, max_size=4), st.integers(1, 3), st.randoms(use_true_random=False))
    @settings(max_examples=40, deadline=None)
    def test_an_entry_does_not_depend_on_its_batch(self, seeds: list[int], width: int, rng: object) -> None:
        positions = [[rng.randrange(5000) for _ in range(width)] for _ in seeds]  # type: ignore[attr-defined]
        together = draw(seeds, positions, [3, 1, 4])
        for b, seed in enumerate(seeds):
            for k in range(width):
                assert draw([seed], [[positions[b][k]]], [4]).item() == together[b, k, 2].item()

    def test_a_reduced_token_list_picks_the_same_columns(self) -> None:
        ids = [7, 2, 90, 41]
        full = draw([11], [[4, 5]], list(range(100)))
        assert torch.equal(draw([11], [[4, 5]], ids), full[..., ids])

    @pytest.mark.parametrize("other", [2**32, 2**63 - 1, -1, -(2**63), 1])
    def test_every_part_of_a_64_bit_seed_counts(self, other: int) -> None:
        assert not torch.equal(draw([0], [[1]], list(range(8))), draw([other], [[1]], list(range(8))))

    def test_does_not_touch_its_arguments(self) -> None:
        seeds, positions, tokens = torch.tensor([5]), torch.tensor([[6]]), torch.tensor([7])
        uniform(seeds, positions, tokens)
        assert (seeds.item(), positions.item(), tokens.item()) == (5, 6, 7)

    @pytest.mark.gpu
    def test_has_the_same_bits_on_a_gpu(self) -> None:
        seeds, positions = torch.tensor([0, -5, 2**62]), torch.arange(30).view(3, 10)
        tokens = torch.arange(5000)
        there = uniform(seeds.cuda(), positions.cuda(), tokens.cuda()).cpu()
        assert torch.equal(there, uniform(seeds, positions, tokens))


def pair_table(first: Tensor, second: Tensor) -> Tensor:
    """Counts of two uniforms' joint 16 × 16 cells."""
    cells = (first.flatten() * 16).long() * 16 + (second.flatten() * 16).long()
    return torch.bincount(cells, minlength=256)


def dependence(first: Tensor, second: Tensor) -> float:
    return chi_square(pair_table(first, second), [1 / 256] * 256)


class TestUniformity:
    """65,536 pairs in 16 × 16 cells; a 2 % chance of equal values would be seen with probability > 0.999999."""

    COUNT = 65_536
    LIMIT = CHI_SQUARE_LIMIT[255]

    @pytest.mark.parametrize("shift", [1, 2, 2**16, 2**31, 2**32, 2**62])
    def test_seeds_are_independent(self, shift: int) -> None:
        seeds = torch.arange(self.COUNT)
        position, token = torch.zeros(self.COUNT, 1, dtype=torch.int64), torch.tensor([5])
        assert dependence(uniform(seeds, position, token), uniform(seeds + shift, position, token)) < self.LIMIT

    @pytest.mark.parametrize("shift", [1, 8, 1024, 65536])
    def test_positions_are_independent(self, shift: int) -> None:
        positions = torch.arange(self.COUNT)[None]
        one = uniform(torch.tensor([42]), positions, torch.tensor([17]))
        assert dependence(one, uniform(torch.tensor([42]), positions + shift, torch.tensor([17]))) < self.LIMIT

    @pytest.mark.parametrize("shift", [1, 2, 256, 32768])
    def test_tokens_are_independent(self, shift: int) -> None:
        tokens = torch.arange(self.COUNT)
        one = uniform(torch.tensor([7]), torch.tensor([[3]]), tokens)
        assert dependence(one, uniform(torch.tensor([7]), torch.tensor([[3]]), tokens + shift)) < self.LIMIT

    def test_seed_and_position_do_not_trade_places(self) -> None:
        steps = torch.arange(self.COUNT)
        along = uniform(steps, torch.ones(self.COUNT, 1, dtype=torch.int64), torch.tensor([0]))
        across = uniform(torch.tensor([1]), steps[None], torch.tensor([0]))
        assert dependence(along, across) < self.LIMIT

    def test_the_check_notices_two_percent_of_copies(self) -> None:
        tokens = torch.arange(self.COUNT)
        one = uniform(torch.tensor([7]), torch.tensor([[3]]), tokens).flatten()
        other = uniform(torch.tensor([8]), torch.tensor([[3]]), tokens).flatten()
        other[::50] = one[::50]
        assert dependence(one, other) > self.LIMIT


class TestGumbel:
    LAW = (0.4, 0.2, 0.15, 0.1, 0.08, 0.04, 0.02, 0.01)
    DRAWS = 40_000

    def counts(self, law: tuple[float, ...]) -> Tensor:
        noise = gumbel(torch.tensor([99]), torch.arange(self.DRAWS)[None], torch.arange(len(law)))[0]
        return torch.bincount((torch.tensor(law).log() + noise).argmax(dim=-1), minlength=len(law))

    def test_argmax_samples_the_law(self) -> None:
        """40,000 draws: moving 2 % of the mass between the two likeliest tokens is seen with probability > 0.999."""
        assert chi_square(self.counts(self.LAW), self.LAW) < CHI_SQUARE_LIMIT[7]

    def test_argmax_of_a_wrong_law_is_noticed(self) -> None:
        wrong = (0.38, 0.22, *self.LAW[2:])
        assert chi_square(self.counts(wrong), self.LAW) > CHI_SQUARE_LIMIT[7]

    def test_a_rare_token_keeps_its_rate(self) -> None:
        """Large noise comes from the precise small uniforms: p = 1e-5 is met 42 ± 6.5 times in 2**22 draws."""
        noise = gumbel(torch.tensor([5]), torch.arange(2**21)[None], torch.tensor([1, 2]))[0]
        law = torch.tensor([1 - 1e-5, 1e-5]).log()
        rare = int((law + noise).argmax(dim=-1).sum()) + int((law + noise.flip(1)).argmax(dim=-1).sum())
        assert 42 - 5 * 6.5 < rare < 42 + 5 * 6.5

    @given(SEEDS, POSITIONS)
    @settings(max_examples=50, deadline=None)
    def test_is_finite_and_follows_the_uniform(self, seed: int, position: int) -> None:
        where = torch.tensor([seed]), torch.tensor([[position]]), torch.arange(50)
        noise = gumbel(*where)
        assert torch.isfinite(noise).all()
        expected = -torch.log(-torch.log1p(-uniform(*where).double()))
        assert torch.allclose(noise.double(), expected, rtol=1e-5, atol=1e-5)
