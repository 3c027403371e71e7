"""Acceptance metrics: the golden trace, null for missing data, and identities that hold for any counts."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import ResultsError
from analysis.round_metrics import (
    acceptance_columns,
    acceptance_histogram,
    draft_acceptance_rate,
    mean_acceptance_length,
    mean_acceptance_length_per_request,
    per_position_acceptance,
    per_position_acceptance_conditional,
)

GOLDEN = [3, 0, 2]


class TestGoldenTrace:
    def test_rate(self) -> None:
        assert draft_acceptance_rate(GOLDEN, 9) == pytest.approx(0.5556, abs=1e-4)

    def test_mean_length_counts_the_bonus_token(self) -> None:
        assert mean_acceptance_length(GOLDEN) == pytest.approx(2.6667, abs=1e-4)

    def test_histogram(self) -> None:
        assert acceptance_histogram(GOLDEN, 3) == [1, 0, 1, 1]

    def test_positions(self) -> None:
        assert per_position_acceptance(GOLDEN, 3) == pytest.approx([2 / 3, 2 / 3, 1 / 3])

    def test_conditional_positions(self) -> None:
        assert per_position_acceptance_conditional(GOLDEN, 3) == pytest.approx([2 / 3, 1.0, 1 / 2])

    def test_columns(self) -> None:
        columns = acceptance_columns([GOLDEN], 3)
        assert (columns["num_spec_rounds"], columns["num_draft_tokens"]) == (3, 9)
        assert columns["num_accepted_draft_tokens"] == 5


class TestMissingData:
    def test_no_rounds_are_null_everywhere(self) -> None:
        assert set(acceptance_columns([[], []], 3).values()) == {None}

    def test_nothing_proposed_is_null(self) -> None:
        assert draft_acceptance_rate([], 0) is None

    def test_a_position_nobody_reached_is_null(self) -> None:
        assert per_position_acceptance_conditional([0, 0], 2) == [0.0, None]

    def test_a_request_without_rounds_does_not_count(self) -> None:
        assert mean_acceptance_length_per_request([[1], []]) == 2.0


def test_per_request_and_token_weighted_differ() -> None:
    columns = acceptance_columns([[3], [0, 0, 0]], 3)
    assert columns["mean_acceptance_length_token_weighted"] == 1.75
    assert columns["mean_acceptance_length_per_request"] == 2.5


def test_a_counted_bonus_token_is_refused() -> None:
    with pytest.raises(ResultsError, match="between 0 and the block length 3, got 4"):
        acceptance_histogram([4], 3)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_identities(accepted: list[int]) -> None:
    histogram = acceptance_histogram(accepted, 5)
    positions = per_position_acceptance(accepted, 5)
    length = mean_acceptance_length(accepted)
    assert histogram is not None
    assert positions is not None
    assert sum(histogram) == len(accepted)
    assert length == pytest.approx(1 + sum(positions))
    assert all(a >= b for a, b in pairwise(positions))
