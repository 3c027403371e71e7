"""Reveal rules and the denoising loop, written out on blocks of a few slots."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cluster.decoding import DraftBlock, Effort, Sampling, denoise
from cluster.decoding.noise import gumbel
from cluster.decoding.reveal import choose, quota

MASK = 9
GREEDY = Sampling()


def chosen(
    confidence: list[float], masked: list[int], effort: Effort, done: int, length: int | None = None
) -> list[int]:
    """The slots that one pass reveals."""
    still = torch.zeros(1, len(confidence), dtype=torch.bool)
    still[0, masked] = True
    size = len(confidence) if length is None else length
    picked = choose(still, torch.tensor([confidence]), torch.tensor([size]), [effort], done)
    return picked[0].nonzero()[:, 0].tolist()


def fixed(logits: Tensor) -> Callable[[Tensor], Tensor]:
    """A drafter whose laws ``[B, K, V]`` do not depend on what is revealed."""
    return lambda ids: logits[:, : ids.shape[1]]


def confident(order: list[float], tokens: list[int], vocab: int = 5) -> Tensor:
    """``[K, V]`` logits whose argmax is ``tokens`` and whose confidence grows with ``order``."""
    logits = torch.zeros(len(order), vocab)
    logits[torch.arange(len(order)), torch.tensor(tokens)] = torch.tensor(order)
    return logits


def run(
    logits: Tensor, lengths: list[int], efforts: list[Effort], samplings: list[Sampling] | None = None
) -> DraftBlock:
    batch = len(lengths)
    return denoise(
        fixed(logits),
        torch.tensor(lengths),
        torch.arange(batch) * 10,
        samplings or [GREEDY] * batch,
        efforts,
        torch.arange(logits.shape[-1]),
        MASK,
    )


class TestQuota:
    @pytest.mark.parametrize(
        ("masked", "passes", "shares"),
        [(8, 1, [8]), (8, 3, [3, 3, 2]), (7, 4, [2, 2, 2, 1]), (4, 4, [1, 1, 1, 1]), (5, 2, [3, 2])],
    )
    def test_shares_the_positions_with_the_larger_first(self, masked: int, passes: int, shares: list[int]) -> None:
        assert [quota(masked, passes, done) for done in range(passes)] == shares

    @given(st.integers(1, 40), st.integers(1, 40))
    def test_reveals_everything_in_exactly_its_passes(self, masked: int, passes: int) -> None:
        assert sum(quota(masked, passes, done) for done in range(passes)) == masked


class TestChoose:
    def test_quota_takes_the_most_confident(self) -> None:
        assert chosen([0.2, 0.9, 0.5, 0.7], [0, 1, 2, 3], Effort(4, 2), done=0) == [1, 3]

    def test_quota_skips_what_is_revealed(self) -> None:
        assert chosen([0.2, 0.9, 0.5, 0.7], [0, 2], Effort(4, 4), done=2) == [2]

    def test_quota_takes_the_earlier_of_equals(self) -> None:
        assert chosen([0.5, 0.5, 0.5, 0.5], [0, 1, 2, 3], Effort(4, 2), done=0) == [0, 1]

    def test_left_to_right_ignores_confidence(self) -> None:
        assert chosen([0.2, 0.9, 0.5, 0.7], [0, 1, 2, 3], Effort(4, 2, "left_to_right"), done=0) == [0, 1]

    def test_threshold_takes_all_at_or_above(self) -> None:
        assert chosen([0.5, 0.9, 0.4, 0.75], [0, 1, 2, 3], Effort(4, 4, "threshold", 0.5), done=0) == [0, 1, 3]

    def test_threshold_takes_the_top_one_if_none_is_above(self) -> None:
        assert chosen([0.1, 0.2, 0.4, 0.3], [0, 1, 2, 3], Effort(4, 4, "threshold", 0.9), done=0) == [2]

    def test_threshold_does_not_count_revealed_slots(self) -> None:
        assert chosen([0.1, 0.95, 0.4, 0.3], [0, 2, 3], Effort(4, 4, "threshold", 0.9), done=1) == [2]

    def test_threshold_zero_is_one_pass(self) -> None:
        assert chosen([0.1, 0.2, 0.4, 0.3], [0, 1, 2, 3], Effort(4, 4, "threshold", 0.0), done=0) == [0, 1, 2, 3]

    @pytest.mark.parametrize("effort", [Effort(4, 2), Effort(4, 2, "threshold", 1.0), Effort(4, 2, "left_to_right")])
    def test_the_last_pass_takes_whatever_is_left(self, effort: Effort) -> None:
        assert chosen([0.1, 0.2, 0.4, 0.3], [0, 2, 3], effort, done=1) == [0, 2, 3]

    def test_nothing_masked_chooses_nothing(self) -> None:
        assert chosen([0.1, 0.2], [], Effort(2, 2, "threshold", 0.0), done=0, length=0) == []


class TestDenoise:
    LOGITS = confident([1.0, 4.0, 2.0, 3.0], [3, 0, 2, 1])[None]

    def test_one_pass_reveals_all_at_once(self) -> None:
        block = run(self.LOGITS, [4], [Effort(4, 1)])
        assert block.tokens.tolist() == [[3, 0, 2, 1]]
        assert block.reveal_step.tolist() == [[0, 0, 0, 0]]
        assert block.forwards.tolist() == [1]

    def test_confidence_order_over_four_passes(self) -> None:
        assert run(self.LOGITS, [4], [Effort(4, 4)]).reveal_step.tolist() == [[3, 0, 2, 1]]

    def test_left_to_right_over_two_passes(self) -> None:
        assert run(self.LOGITS, [4], [Effort(4, 2, "left_to_right")]).reveal_step.tolist() == [[0, 0, 1, 1]]

    def test_a_short_block_spends_no_more_passes_than_tokens(self) -> None:
        block = run(self.LOGITS, [2], [Effort(4, 4)])
        assert block.forwards.tolist() == [2]
        assert block.tokens.shape == (1, 2)

    def test_threshold_stops_as_soon_as_all_is_revealed(self) -> None:
        """Two slots pass at once; the others need the top-one rule, one pass each."""
        logits = confident([9.0, 0.5, 8.0, 0.6], [0, 1, 2, 3])[None]
        block = run(logits, [4], [Effort(4, 4, "threshold", 0.9)])
        assert block.reveal_step.tolist() == [[0, 2, 0, 1]]
        assert block.forwards.tolist() == [3]

    def test_mixed_efforts_and_lengths_in_one_batch(self) -> None:
        logits = self.LOGITS.expand(5, -1, -1)
        efforts = [Effort(4, 1), Effort(4, 4), Effort(4, 2, "left_to_right"), Effort(4, 4, "threshold", 0.0), Effort()]
        block = run(logits, [4, 3, 4, 2, 0], efforts)
        assert block.reveal_step.tolist() == [
            [0, 0, 0, 0],
            [2, 0, 1, -1],
            [0, 0, 1, 1],
            [0, 0, -1, -1],
            [-1, -1, -1, -1],
        ]
        assert block.forwards.tolist() == [1, 3, 2, 1, 0]
        assert block.tokens.tolist()[1] == [3, 0, 2, MASK]
        assert block.length.tolist() == [4, 3, 4, 2, 0]

    def test_the_drafter_sees_masks_and_what_was_revealed(self) -> None:
        seen: list[list[int]] = []

        def forward(ids: Tensor) -> Tensor:
            seen.append(ids[0].tolist())
            return self.LOGITS

        order = Effort(4, 2, "left_to_right")
        denoise(forward, torch.tensor([4]), torch.tensor([0]), [GREEDY], [order], torch.arange(5), MASK)
        assert seen == [[MASK] * 4, [3, 0, MASK, MASK]]

    def test_a_revealed_token_is_never_rewritten(self) -> None:
        """The drafter changes its mind after each pass; the first value stays."""
        calls: list[int] = []

        def forward(ids: Tensor) -> Tensor:
            calls.append(0)
            return confident([1.0, 1.0, 1.0], [len(calls)] * 3)[None, : ids.shape[1]]

        block = denoise(forward, torch.tensor([3]), torch.tensor([0]), [GREEDY], [Effort(3, 3)], torch.arange(5), MASK)
        assert block.tokens.tolist() == [[1, 2, 3]]

    def test_reduced_vocabulary_drafts_vocabulary_ids(self) -> None:
        ids = torch.tensor([40, 3, 17, 8, 90])
        block = denoise(
            fixed(self.LOGITS), torch.tensor([4]), torch.tensor([0]), [GREEDY], [Effort(4)], ids, mask_id=MASK
        )
        assert block.tokens.tolist() == [[8, 40, 17, 3]]

    def test_a_sampled_row_draws_with_the_verifiers_noise_of_its_positions(self) -> None:
        """Equal laws: slot j of anchor 30 draws argmax of the noise at position 31 + j."""
        sampling = Sampling(1.0, seed=6)
        logits = torch.zeros(1, 4, 5)
        block = denoise(
            fixed(logits), torch.tensor([4]), torch.tensor([30]), [sampling], [Effort(4, 2)], torch.arange(5), MASK
        )
        noise = gumbel(torch.tensor([6]), torch.tensor([[31, 32, 33, 34]]), torch.arange(5))
        assert torch.equal(block.tokens, noise.argmax(-1))

    def test_the_reveal_order_does_not_look_at_sampled_values(self) -> None:
        """Two seeds draw different tokens in the same order."""
        logits = torch.stack([self.LOGITS[0] / 4] * 2)
        samplings = [Sampling(1.0, seed=1), Sampling(1.0, seed=2)]
        block = run(logits, [4, 4], [Effort(4, 4)] * 2, samplings)
        assert block.tokens[0].tolist() != block.tokens[1].tolist()
        assert block.reveal_step.tolist() == [[3, 0, 2, 1]] * 2


def efforts() -> st.SearchStrategy[Effort]:
    passes = st.integers(1, 6)
    ordered = st.builds(Effort, st.just(6), passes, st.sampled_from(["quota", "left_to_right"]))
    threshold = st.builds(Effort, st.just(6), passes, st.just("threshold"), st.sampled_from([0.0, 0.3, 0.6, 1.0]))
    return ordered | threshold


class TestDenoiseAnywhere:
    @given(st.lists(st.tuples(efforts(), st.integers(0, 6)), min_size=1, max_size=5), st.integers(0, 1000))
    @settings(max_examples=50, deadline=None)
    def test_every_row_is_drafted_as_if_alone(self, rows: list[tuple[Effort, int]], seed: int) -> None:
        logits = 2 * torch.randn(len(rows), 6, 5, generator=torch.Generator().manual_seed(seed))
        lengths = [n for _, n in rows]
        block = run(logits, lengths, [e for e, _ in rows])
        for b, (effort, n) in enumerate(rows):
            alone = run(logits[b : b + 1], [n], [effort])
            assert alone.tokens[0].tolist() == block.tokens[b, :n].tolist()
            assert alone.reveal_step[0].tolist() == block.reveal_step[b, :n].tolist()
            assert alone.forwards.item() == block.forwards[b].item()
            assert block.reveal_step[b, n:].eq(-1).all()

    @given(efforts(), st.integers(1, 6), st.integers(0, 1000))
    @settings(max_examples=50, deadline=None)
    def test_forwards_are_the_passes_that_revealed_something(self, effort: Effort, n: int, seed: int) -> None:
        logits = 2 * torch.randn(1, 6, 5, generator=torch.Generator().manual_seed(seed))
        block = run(logits, [n], [effort])
        assert sorted(set(block.reveal_step[0].tolist())) == list(range(int(block.forwards)))
        expected = min(effort.passes, n)
        assert block.forwards.item() <= effort.passes if effort.reveal == "threshold" else block.forwards == expected
