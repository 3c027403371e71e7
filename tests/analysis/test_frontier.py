"""The Pareto frontier: ties, missing values, and agreement with the definition."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import ResultsError, hypervolume, pareto_frontier


def table(*points: tuple[float | None, float | None]) -> pd.DataFrame:
    return pd.DataFrame(points, columns=["speedup", "quality"]).astype("float64")


class TestTies:
    def test_a_dominated_tie_is_removed(self) -> None:
        frontier = pareto_frontier(table((10, 100), (5, 100))).points
        assert frontier["speedup"].tolist() == [10]
        assert not frontier["duplicate"].any()

    def test_exact_duplicates_are_kept_and_flagged(self) -> None:
        frontier = pareto_frontier(table((10, 100), (10, 100), (20, 50))).points
        assert frontier["duplicate"].tolist() == [True, True, False]


class TestMissing:
    def test_nan_is_excluded_and_listed(self) -> None:
        result = pareto_frontier(table((1, 1), (None, 2), (3, None), (float("inf"), 1)))
        assert result.points.index.tolist() == [0]
        assert result.excluded["reason"].tolist() == ["no speedup", "no quality", "no speedup"]

    def test_an_all_nan_column_is_an_error(self) -> None:
        with pytest.raises(ResultsError, match="Expected numbers in 'quality', got none"):
            pareto_frontier(table((1, None), (2, None)))

    def test_no_complete_row_is_an_error(self) -> None:
        with pytest.raises(ResultsError, match="at least one row with both"):
            pareto_frontier(table((1, None), (None, 2)))

    def test_a_missing_column_is_an_error(self) -> None:
        with pytest.raises(ResultsError, match="Expected a column 'tokens_per_s'"):
            pareto_frontier(table((1, 1)), speed="tokens_per_s")

    def test_one_point_is_a_frontier_of_one(self) -> None:
        assert len(pareto_frontier(table((1, 1))).points) == 1

    def test_nullable_integers_work(self) -> None:
        points = pd.DataFrame({"speedup": pd.array([1, None], dtype="Int64"), "quality": [1.0, 2.0]})
        assert len(pareto_frontier(points).excluded) == 1


class TestHypervolume:
    def test_area_of_two_rectangles(self) -> None:
        assert hypervolume(np.array([[1.0, 0.8], [2.0, 0.5]])) == pytest.approx(0.8 + 0.5)

    def test_ar_alone_covers_its_quality(self) -> None:
        assert hypervolume(np.array([[1.0, 0.7]])) == pytest.approx(0.7)

    def test_nothing_covers_nothing(self) -> None:
        assert hypervolume(np.empty((0, 2))) == 0.0


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=20))
def test_agrees_with_the_definition(points: list[tuple[int, int]]) -> None:
    def dominated(p: tuple[int, int]) -> bool:
        return any(q != p and q[0] >= p[0] and q[1] >= p[1] for q in points)

    frontier = pareto_frontier(table(*points)).points
    assert sorted(frontier.index) == [i for i, p in enumerate(points) if not dominated(p)]
    assert frontier["speedup"].is_monotonic_increasing
    flagged = set(frontier.index[frontier["duplicate"]])
    assert flagged == {i for i in frontier.index if points.count(points[i]) > 1}
