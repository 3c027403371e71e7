"""The processors: temperature, top-k, top-p, and whose noise goes where."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cluster.decoding import Sampling
from cluster.decoding.noise import gumbel
from cluster.decoding.sampling import add_noise, process_logits

INF = float("-inf")
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.5, 0.7, 1.0, 1.3]),
    top_k=st.sampled_from([None, 1, 2, 4, 99]),
    top_p=st.sampled_from([None, 0.1, 0.6, 0.9, 1.0]),
    seed=st.integers(-(2**63), 2**63 - 1),
)


def process(values: list[float], sampling: Sampling) -> list[float]:
    return process_logits(torch.tensor([[values]]), [sampling])[0, 0].tolist()


class TestTemperature:
    def test_divides(self) -> None:
        assert process([2.0, 1.0, -4.0], Sampling(0.5)) == [4.0, 2.0, -8.0]

    def test_leaves_greedy_rows_at_temperature_one(self) -> None:
        assert process([2.0, 1.0, -4.0], Sampling(0.0)) == [2.0, 1.0, -4.0]

    def test_keeps_the_rows_of_a_batch_apart(self) -> None:
        logits = torch.tensor([[[2.0, 1.0]], [[2.0, 1.0]], [[2.0, 1.0]]])
        scores = process_logits(logits, [Sampling(0.0), Sampling(2.0), Sampling(1.0)])
        assert scores[:, 0].tolist() == [[2.0, 1.0], [1.0, 0.5], [2.0, 1.0]]


class TestTopK:
    def test_keeps_the_largest(self) -> None:
        assert process([3.0, 5.0, 1.0, 4.0], Sampling(1.0, top_k=2)) == [INF, 5.0, INF, 4.0]

    def test_keeps_every_token_tied_with_the_last_kept(self) -> None:
        assert process([3.0, 5.0, 3.0, 1.0], Sampling(1.0, top_k=2)) == [3.0, 5.0, 3.0, INF]

    def test_beyond_the_vocabulary_keeps_all(self) -> None:
        assert process([3.0, 5.0], Sampling(1.0, top_k=9)) == [3.0, 5.0]


class TestTopP:
    LOGITS = torch.tensor([0.5, 0.25, 0.125, 0.125]).log().tolist()

    @pytest.mark.parametrize(
        ("top_p", "kept"),
        [(0.3, [0]), (0.5, [0]), (0.51, [0, 1]), (0.75, [0, 1]), (0.8, [0, 1, 2]), (1.0, [0, 1, 2, 3])],
    )
    def test_keeps_the_smallest_set_that_reaches_it(self, top_p: float, kept: list[int]) -> None:
        scores = process(self.LOGITS, Sampling(1.0, top_p=top_p))
        assert [i for i, s in enumerate(scores) if s > INF] == kept

    def test_applies_to_what_top_k_left(self) -> None:
        """After top-k 2 the law is (2/3, 1/3): 0.6 is reached by the first token alone."""
        assert [s > INF for s in process(self.LOGITS, Sampling(1.0, top_k=2, top_p=0.6))] == [True, False, False, False]

    def test_applies_after_temperature(self) -> None:
        """At temperature 0.5 the law is (16, 4, 1, 1) / 22: the first token alone has 0.73."""
        assert [s > INF for s in process(self.LOGITS, Sampling(0.5, top_p=0.7))] == [True, False, False, False]


class TestProcessing:
    @given(st.lists(SAMPLINGS, min_size=1, max_size=4))
    @settings(max_examples=60, deadline=None)
    def test_a_row_does_not_depend_on_its_batch(self, samplings: list[Sampling]) -> None:
        logits = torch.randn(len(samplings), 2, 7, generator=torch.Generator().manual_seed(1))
        ids, positions = torch.arange(7), torch.arange(2).expand(len(samplings), 2) + 5
        together = add_noise(process_logits(logits, samplings), samplings, positions, ids)
        for b, sampling in enumerate(samplings):
            alone = add_noise(process_logits(logits[b : b + 1], [sampling]), [sampling], positions[b : b + 1], ids)
            assert torch.equal(alone[0], together[b])

    @given(SAMPLINGS)
    @settings(max_examples=60, deadline=None)
    def test_the_likeliest_token_always_stays(self, sampling: Sampling) -> None:
        logits = torch.randn(1, 3, 7, generator=torch.Generator().manual_seed(2))
        assert torch.equal(process_logits(logits, [sampling]).argmax(-1), logits.argmax(-1))

    @given(SAMPLINGS)
    @settings(max_examples=60, deadline=None)
    def test_does_not_write_into_the_logits(self, sampling: Sampling) -> None:
        logits = torch.randn(1, 3, 7, generator=torch.Generator().manual_seed(3))
        before = logits.clone()
        scores = process_logits(logits, [sampling])
        add_noise(scores, [sampling], torch.zeros(1, 3, dtype=torch.int64), torch.arange(7))
        assert torch.equal(logits, before)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
    def test_gives_float32_for_any_dtype(self, dtype: torch.dtype) -> None:
        assert process_logits(torch.ones(1, 1, 3, dtype=dtype), [Sampling()]).dtype == torch.float32


class TestNoise:
    SCORES = torch.zeros(2, 2, 5)
    POSITIONS = torch.tensor([[3, 4], [8, 9]])

    def noisy(self, samplings: list[Sampling], ids: Tensor | None = None) -> Tensor:
        return add_noise(self.SCORES, samplings, self.POSITIONS, torch.arange(5) if ids is None else ids)

    def test_greedy_rows_get_none(self) -> None:
        noisy = self.noisy([Sampling(0.0, seed=4), Sampling(0.7, seed=5)])
        assert torch.equal(noisy[0], self.SCORES[0])
        assert torch.equal(noisy[1], gumbel(torch.tensor([5]), self.POSITIONS[1:], torch.arange(5))[0])

    def test_each_row_gets_its_own_seeds(self) -> None:
        noisy = self.noisy([Sampling(1.0, seed=4), Sampling(1.0, seed=5)])
        assert torch.equal(noisy, gumbel(torch.tensor([4, 5]), self.POSITIONS, torch.arange(5)))

    def test_columns_follow_the_token_ids(self) -> None:
        ids = torch.tensor([40, 2, 30, 1, 7])
        noisy = self.noisy([Sampling(1.0, seed=4)] * 2, ids)
        assert torch.equal(noisy, gumbel(torch.tensor([4, 4]), self.POSITIONS, torch.arange(41))[..., ids])
