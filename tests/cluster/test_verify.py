"""The verification of a block: own samples, required margins, acceptance, failed rows."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cluster.decoding import LOSSLESS, Leniency, Sampling, Verdict, emitted_tokens, verify_block
from tests.cluster.toys import CHI_SQUARE_LIMIT, chi_square

GREEDY = Sampling()
INF = float("inf")
MATCH = Leniency("match")


def verdict(
    logits: list[list[float]] | Tensor,
    draft: list[int],
    leniency: Leniency = LOSSLESS,
    sampling: Sampling = GREEDY,
    length: int | None = None,
) -> Verdict:
    """One row: ``logits [K + 1, V]``, ``draft [K]``."""
    return verify_block(
        torch.as_tensor(logits)[None],
        torch.tensor([draft], dtype=torch.int64),
        torch.tensor([len(draft) if length is None else length]),
        torch.tensor([10]),
        [sampling],
        [leniency],
    )


class TestGreedyMargin:
    """Own tokens 1, 0, 2, 1; the draft 1, 2, 2 needs margins 0, 1.5, 0."""

    LOGITS = ((0.0, 2.0, 1.0), (3.0, 0.0, 1.5), (0.0, 1.0, 4.0), (0.0, 5.0, 0.0))
    DRAFT = (1, 2, 2)

    def judge(self, leniency: Leniency) -> Verdict:
        return verdict([list(row) for row in self.LOGITS], list(self.DRAFT), leniency)

    def test_own_samples_are_the_argmax(self) -> None:
        assert self.judge(LOSSLESS).own.tolist() == [[1, 0, 2, 1]]

    def test_required_margins_are_the_distance_to_the_best(self) -> None:
        assert self.judge(LOSSLESS).required_margin.tolist() == [[0.0, 1.5, 0.0]]

    @pytest.mark.parametrize(
        ("leniency", "accepted", "emitted"),
        [
            (LOSSLESS, 1, [1, 0]),
            (MATCH, 1, [1, 0]),
            (Leniency("margin", 1.49), 1, [1, 0]),
            (Leniency("margin", 1.5), 3, [1, 2, 2, 1]),
            (Leniency("margin", 9.0), 3, [1, 2, 2, 1]),
        ],
    )
    def test_the_margin_decides(self, leniency: Leniency, accepted: int, emitted: list[int]) -> None:
        judged = self.judge(leniency)
        assert judged.accepted.tolist() == [accepted]
        out = emitted_tokens(torch.tensor([self.DRAFT]), judged.own, judged.accepted)
        assert out[0, : accepted + 1].tolist() == emitted

    def test_regret_is_that_of_the_emitted_tokens(self) -> None:
        assert self.judge(LOSSLESS).regret.tolist() == [[0.0, 0.0, 0.0, 0.0]]
        assert self.judge(Leniency("margin", 2.0)).regret.tolist() == [[0.0, 1.5, 0.0, 0.0]]

    def test_nll_is_that_of_the_emitted_tokens(self) -> None:
        nll = self.judge(LOSSLESS).nll[0].tolist()
        assert nll[0] == pytest.approx(math.log(math.exp(0) + math.exp(2) + math.exp(1)) - 2.0, abs=1e-6)
        assert nll[1] == pytest.approx(math.log(math.exp(3) + math.exp(0) + math.exp(1.5)) - 3.0, abs=1e-6)
        assert nll[2:] == [0.0, 0.0]


class TestTies:
    """Tokens 0 and 2 have the same logit; the own sample is the first of them."""

    LOGITS = ((3.0, 0.0, 3.0), (1.0, 0.0, 0.0))

    @pytest.mark.parametrize("leniency", [LOSSLESS, MATCH, Leniency("margin", 0.0)])
    def test_margin_zero_is_token_identical(self, leniency: Leniency) -> None:
        judged = verdict([list(row) for row in self.LOGITS], [2], leniency)
        assert judged.own[0, 0] == 0
        assert judged.accepted.tolist() == [0]

    def test_the_required_margin_of_a_tied_token_is_positive(self) -> None:
        assert 0 < verdict([list(row) for row in self.LOGITS], [2]).required_margin.item() < 1e-30

    def test_any_real_margin_accepts_it(self) -> None:
        assert verdict([list(row) for row in self.LOGITS], [2], Leniency("margin", 1e-6)).accepted.tolist() == [1]


class TestLength:
    LOGITS = torch.eye(3)[[1, 0, 2, 1]] * 5

    @pytest.mark.parametrize("length", [0, 1, 2, 3])
    def test_nothing_beyond_the_length_is_accepted(self, length: int) -> None:
        judged = verdict(self.LOGITS, [1, 0, 2], Leniency("margin", 100.0), length=length)
        assert judged.accepted.tolist() == [length]
        assert judged.required_margin[0, length:].eq(INF).all()

    def test_without_a_draft_the_own_token_is_emitted(self) -> None:
        judged = verdict(self.LOGITS[:1], [])
        assert judged.accepted.tolist() == [0]
        assert emitted_tokens(torch.zeros(1, 0, dtype=torch.int64), judged.own, judged.accepted).tolist() == [[1]]

    def test_rows_of_different_lengths_and_rules(self) -> None:
        logits = self.LOGITS.expand(4, -1, -1)
        draft = torch.tensor([[1, 0, 2], [1, 2, 2], [1, 2, 2], [0, 0, 0]])
        rules = [LOSSLESS, LOSSLESS, Leniency("margin", 5.0), MATCH]
        positions = torch.tensor([10, 20, 30, 40])
        judged = verify_block(logits, draft, torch.tensor([2, 3, 3, 0]), positions, [GREEDY] * 4, rules)
        assert judged.accepted.tolist() == [2, 1, 3, 0]


class TestTruncation:
    def test_a_token_outside_the_truncated_law_is_never_accepted(self) -> None:
        sampling = Sampling(1.0, top_k=2, seed=3)
        judged = verdict([[5.0, 4.0, 3.9], [1.0, 0.0, 0.0]], [2], Leniency("margin", 1e30), sampling)
        assert judged.required_margin.item() == INF
        assert judged.accepted.tolist() == [0]


class TestNotFinite:
    """A row without a finite value at a committed position fails, and only that row."""

    def batch(self) -> tuple[Tensor, Tensor]:
        return torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0)), torch.tensor([[0, 1, 2]] * 3)

    @pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf")])
    @pytest.mark.parametrize("temperature", [0.0, 0.7])
    def test_marks_the_row(self, value: float, temperature: float) -> None:
        logits, draft = self.batch()
        logits[1] = value
        samplings = [Sampling(temperature, seed=s) for s in range(3)]
        judged = verify_block(logits, draft, torch.full((3,), 3), torch.arange(3), samplings, [LOSSLESS] * 3)
        assert judged.failed.tolist() == [False, True, False]

    def test_one_nan_is_enough(self) -> None:
        logits, draft = self.batch()
        logits[2, 0, 4] = float("nan")
        judged = verify_block(logits, draft, torch.full((3,), 3), torch.arange(3), [GREEDY] * 3, [LOSSLESS] * 3)
        assert judged.failed.tolist() == [False, False, True]

    @pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.9, top_k=3, top_p=0.8, seed=1)])
    def test_leaves_the_other_rows_untouched(self, sampling: Sampling) -> None:
        logits, draft = self.batch()
        lengths, positions = torch.full((3,), 3), torch.arange(3)
        before = verify_block(logits, draft, lengths, positions, [sampling] * 3, [Leniency("margin", 1.0)] * 3)
        logits[1] = float("nan")
        after = verify_block(logits, draft, lengths, positions, [sampling] * 3, [Leniency("margin", 1.0)] * 3)
        for name in ("accepted", "own", "required_margin", "regret", "nll"):
            assert torch.equal(getattr(before, name)[[0, 2]], getattr(after, name)[[0, 2]])

    def test_a_masked_out_token_is_no_failure(self) -> None:
        assert verdict([[1.0, float("-inf")], [0.0, 1.0]], [0]).failed.tolist() == [False]

    def test_what_follows_a_rejected_token_is_not_judged(self) -> None:
        """Else a row's end would depend on the drafter and on the padding its neighbours give it."""
        judged = verdict([[1.0, 0.0], [float("nan")] * 2], [1])
        assert judged.accepted.tolist() == [0]
        assert judged.failed.tolist() == [False]


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Tensor, list[int], Sampling]:
    """Logits on a coarse grid, so that ties occur, with any sampling."""
    width, vocab = draw(st.integers(1, 5)), draw(st.integers(2, 5))
    grid = st.lists(st.integers(-4, 4).map(lambda i: i / 2), min_size=vocab, max_size=vocab)
    logits = torch.tensor(draw(st.lists(grid, min_size=width + 1, max_size=width + 1)))
    draft = draw(st.lists(st.integers(0, vocab - 1), min_size=width, max_size=width))
    temperature, top_k = draw(st.sampled_from([0.0, 0.7, 1.3])), draw(st.sampled_from([None, 1, 2]))
    return logits, draft, Sampling(temperature, top_k, seed=draw(st.integers(0, 2**40)))


def verdicts(logits: Tensor, draft: list[int], margins: Sequence[float], sampling: Sampling) -> Verdict:
    """The same row under every margin."""
    count = len(margins)
    return verify_block(
        logits.expand(count, -1, -1),
        torch.tensor([draft] * count),
        torch.full((count,), len(draft)),
        torch.full((count,), 10),
        [sampling] * count,
        [Leniency("margin", m) for m in margins],
    )


class TestMarginAnywhere:
    MARGINS = (0.0, 1e-6, 0.1, 0.5, 1.0, 2.0, 4.0, 100.0)

    @given(blocks())
    @settings(max_examples=60, deadline=None)
    def test_acceptance_never_falls_as_the_margin_grows(self, block: tuple[Tensor, list[int], Sampling]) -> None:
        logits, draft, sampling = block
        counts = verdicts(logits, draft, self.MARGINS, sampling).accepted.tolist()
        assert counts == sorted(counts)

    @given(blocks())
    @settings(max_examples=60, deadline=None)
    def test_margin_zero_accepts_what_match_accepts(self, block: tuple[Tensor, list[int], Sampling]) -> None:
        logits, draft, sampling = block
        strict, match = verdict(logits, draft, LOSSLESS, sampling), verdict(logits, draft, MATCH, sampling)
        assert strict.accepted.equal(match.accepted)
        agree = (torch.tensor(draft) == strict.own[0, :-1]).long().cumprod(0).sum()
        assert int(strict.accepted) == int(agree)

    @given(blocks())
    @settings(max_examples=60, deadline=None)
    def test_required_margins_predict_every_other_margin(self, block: tuple[Tensor, list[int], Sampling]) -> None:
        logits, draft, sampling = block
        needed = verdict(logits, draft, LOSSLESS, sampling).required_margin[0]
        margins = (*self.MARGINS, *[float(x) for x in needed if math.isfinite(x)])
        predicted = [int((needed <= m).long().cumprod(0).sum()) for m in margins]
        assert verdicts(logits, draft, margins, sampling).accepted.tolist() == predicted

    @given(blocks())
    @settings(max_examples=40, deadline=None)
    def test_own_samples_do_not_depend_on_draft_or_margin(self, block: tuple[Tensor, list[int], Sampling]) -> None:
        logits, draft, sampling = block
        other = [(t + 1) % logits.shape[1] for t in draft]
        own = verdict(logits, other, Leniency("margin", 3.0), sampling).own
        assert own.equal(verdict(logits, draft, LOSSLESS, sampling).own)

    def test_the_same_position_gets_the_same_sample_in_any_block(self) -> None:
        """Position 13 is slot 2 of the anchor at 10 and slot 0 of the anchor at 12."""
        logits, sampling = torch.randn(4, 50, generator=torch.Generator().manual_seed(8)), Sampling(1.0, seed=77)
        early = verify_block(
            logits[None], torch.zeros(1, 3).long(), torch.tensor([3]), torch.tensor([10]), [sampling], [LOSSLESS]
        )
        late = verify_block(
            logits[None, 2:], torch.zeros(1, 1).long(), torch.tensor([1]), torch.tensor([12]), [sampling], [LOSSLESS]
        )
        assert late.own[0, 0] == early.own[0, 2]


class TestEmittedLaw:
    """What is emitted at 20,000 positions with one and the same law, against that law; vocabulary 5.

    One row of 20,000 drafted tokens: whatever was accepted before it, a position emits the drafted token if the margin
    admits it and the own sample if not.
    """

    LAW = (0.45, 0.25, 0.15, 0.1, 0.05)
    COUNT = 20_000

    def judge(self, draft: Tensor, law: tuple[float, ...] = LAW) -> Verdict:
        logits = torch.tensor(law).log().expand(self.COUNT + 1, 5)
        return verdict(logits, draft.tolist(), sampling=Sampling(1.0, seed=2024))

    def emitted(self, margin: float, draft: Tensor, law: tuple[float, ...] = LAW) -> Tensor:
        judged = self.judge(draft, law)
        emitted = torch.where(judged.required_margin[0] <= margin, draft, judged.own[0, :-1])
        return torch.bincount(emitted, minlength=5)

    @pytest.mark.parametrize("drafted", [0, 2, 4])
    def test_a_fixed_draft_leaves_the_law_exact(self, drafted: int) -> None:
        """Moving 3 % of the mass between the two likeliest tokens would be seen with probability > 0.999."""
        counts = self.emitted(0.0, torch.full((self.COUNT,), drafted))
        assert chi_square(counts, self.LAW) < CHI_SQUARE_LIMIT[4]

    def test_a_random_draft_leaves_the_law_exact(self) -> None:
        draft = torch.randint(0, 5, (self.COUNT,), generator=torch.Generator().manual_seed(0))
        assert chi_square(self.emitted(0.0, draft), self.LAW) < CHI_SQUARE_LIMIT[4]

    def test_a_wrong_law_is_noticed(self) -> None:
        counts = self.emitted(0.0, torch.zeros(self.COUNT, dtype=torch.int64), (0.42, 0.28, 0.15, 0.1, 0.05))
        assert chi_square(counts, self.LAW) > CHI_SQUARE_LIMIT[4]

    @pytest.mark.parametrize("margin", [0.3, 1.0, 2.0])
    def test_a_fixed_draft_under_a_margin_has_its_closed_form(self, margin: float) -> None:
        """D wins a Gumbel race with a head start: it is emitted with probability e^m p / (e^m p + 1 − p)."""
        p, boost = self.LAW[3], math.exp(margin)
        counts = self.emitted(margin, torch.full((self.COUNT,), 3))
        rate = boost * p / (boost * p + 1 - p)
        assert abs(int(counts[3]) - rate * self.COUNT) < 5 * math.sqrt(self.COUNT * rate * (1 - rate))

    @pytest.mark.parametrize("margin", [0.3, 1.0])
    def test_no_drafter_leaves_the_bound_of_a_token(self, margin: float) -> None:
        """Adversaries that see the noise: one forces a token whenever it can, one avoids it whenever it can."""
        judged = [self.judge(torch.full((self.COUNT,), token)) for token in range(5)]
        admitted = torch.stack([v.required_margin[0] <= margin for v in judged])  # [token, position]
        law = torch.tensor(self.LAW) * self.COUNT
        slack = 5 * law.sqrt()
        forced = admitted.sum(dim=1)
        alone = (admitted & (admitted.sum(dim=0) == 1)).sum(dim=1)  # nothing else could be emitted instead
        assert (forced <= law * math.exp(margin) + slack).all()
        assert (forced > law).all()
        assert (alone >= law * math.exp(-margin) - slack).all()
        assert (alone < law).all()
