"""When a generation ends, and what its statistics say."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.decoding import RequestStats, StopRules
from tests.cluster.toys import spell

TOKENS = st.integers(0, 3)


def commit(rules: StopRules, tokens: list[int], block: int) -> tuple[list[int], str | None]:
    """Feed ``tokens`` in blocks until the rules end the text; what was committed and why it ended."""
    done: list[int] = []
    for first in range(0, len(tokens), block):
        kept, reason = rules.cut(done, tokens[first : first + block], spell)
        done += tokens[first : first + kept]
        if reason:
            return done, reason
    return done, None


class TestCut:
    @pytest.mark.parametrize("index", range(9))
    def test_a_stop_id_ends_the_text_at_its_own_index(self, index: int) -> None:
        new = [1] * index + [7] + [1] * (8 - index)
        assert StopRules(100, frozenset({7})).cut([1, 1], new, None) == (index + 1, "stop")

    def test_the_first_of_several_stop_ids_counts(self) -> None:
        assert StopRules(100, frozenset({7, 8})).cut([], [1, 8, 7], None) == (2, "stop")

    def test_without_a_stop_everything_is_kept(self) -> None:
        assert StopRules(100, frozenset({7})).cut([1], [1, 2, 3], None) == (3, None)

    @pytest.mark.parametrize(("limit", "kept"), [(1, 1), (8, 8), (9, 9)])
    def test_max_tokens_cuts_the_block(self, limit: int, kept: int) -> None:
        assert StopRules(limit).cut([], list(range(9)), None) == (kept, "length")

    def test_max_tokens_counts_what_was_there_before(self) -> None:
        assert StopRules(5).cut([0, 0, 0], [1, 2, 3], None) == (2, "length")

    def test_a_stop_at_the_limit_is_a_stop(self) -> None:
        assert StopRules(2, frozenset({7})).cut([0], [7, 1], None) == (1, "stop")

    def test_a_stop_beyond_the_limit_is_not_seen(self) -> None:
        assert StopRules(2, frozenset({7})).cut([0], [1, 7], None) == (1, "length")

    @pytest.mark.parametrize("before", [0, 1, 2])
    def test_a_stop_string_across_blocks_ends_at_its_last_token(self, before: int) -> None:
        word = [4, 13, 3]  # "end"
        rules = StopRules(100, stop_strings=("end",))
        assert rules.cut([1, *word[:before]], [*word[before:], 2], spell) == (3 - before, "stop")

    def test_a_stop_string_without_decode_is_refused(self) -> None:
        with pytest.raises(ValueError, match="Expected a decode function to honour stop strings, got None"):
            StopRules(3, stop_strings=("a",)).cut([], [1], None)

    @given(st.lists(TOKENS, max_size=24), st.integers(1, 24), st.sampled_from([(), ("ab",), ("cc", "dab"), ("aaa",)]))
    @settings(max_examples=200, deadline=None)
    def test_the_block_size_changes_nothing(self, tokens: list[int], limit: int, stops: tuple[str, ...]) -> None:
        rules = StopRules(limit, frozenset({3}) if not stops else frozenset(), stops)
        expected = commit(rules, tokens, 1)
        assert all(commit(rules, tokens, block) == expected for block in (2, 3, 5, 8, 24))

    @given(st.lists(TOKENS, max_size=24), st.sampled_from([("ab",), ("cc", "dab"), ("aaa",), ("b", "ba")]))
    @settings(max_examples=200, deadline=None)
    def test_the_text_ends_with_the_first_stop_string(self, tokens: list[int], stops: tuple[str, ...]) -> None:
        done, reason = commit(StopRules(100, stop_strings=stops), tokens, 4)
        text = spell(done)
        assert (reason == "stop") == any(s in text for s in stops)
        assert not any(s in text[:-1] for s in stops)

    def test_a_stop_string_of_several_bytes_is_found_byte_by_byte(self) -> None:
        def decode(ids: list[int]) -> str:
            return bytes(ids).decode(errors="replace")

        tokens = list("x한é🙂y".encode())
        kept, reason = StopRules(100, stop_strings=("é🙂",)).cut([], tokens, decode)
        assert (bytes(tokens[:kept]).decode(), reason) == ("x한é🙂", "stop")


class TestTrim:
    @pytest.mark.parametrize(
        ("text", "delivered"), [("one END", "one "), ("one EN", "one EN"), ("END", ""), ("a#b END", "a"), ("", "")]
    )
    def test_keeps_what_precedes_the_earliest_stop_string(self, text: str, delivered: str) -> None:
        assert StopRules(9, stop_strings=("END", "#")).trim(text) == delivered

    def test_without_stop_strings_keeps_all(self) -> None:
        assert StopRules(9).trim("END") == "END"


class TestStats:
    """The golden trace of the metrics reference: K = 3, accepted 3, 0, 2."""

    STATS = RequestStats(accepted_per_round=[3, 0, 2], proposed_per_round=[3, 3, 3])

    def test_counts_rounds_and_tokens(self) -> None:
        assert self.STATS.num_spec_rounds == 3
        assert self.STATS.num_draft_tokens == 9
        assert self.STATS.num_accepted_draft_tokens == 5

    def test_histogram(self) -> None:
        assert self.STATS.acceptance_histogram(3) == [1, 0, 1, 1]

    def test_nothing_drafted_gives_zeros_of_full_length(self) -> None:
        assert RequestStats().acceptance_histogram(4) == [0, 0, 0, 0, 0]

    def test_times_are_absent_until_they_happen(self) -> None:
        assert (RequestStats().ttft_s, RequestStats().latency_s) == (None, None)

    def test_requests_do_not_share_their_lists(self) -> None:
        RequestStats().accepted_per_round.append(1)
        assert RequestStats().accepted_per_round == []
