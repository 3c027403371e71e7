"""The engine on hand-made models: every request's text is its own, whatever shares its batch."""

import itertools
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import cluster.engine
from cluster.decoding import Effort, Leniency, Sampling, StopRules, verify
from cluster.engine import Engine, RequestError
from cluster.messages import Completion, ContextUpdate, Request, RowMove
from tests.cluster.toys import (
    PrefixTable,
    Skill,
    TableDrafter,
    plain,
    request,
    run_one,
    solo_tokens,
    spell,
    table_engine,
)

TABLE = PrefixTable()
SKILLS: tuple[Skill, ...] = ("oracle", "wrong", "random", "chain")
EFFORTS = (
    None,
    Effort(1),
    Effort(4, 2),
    Effort(8, 1),
    Effort(8, 4),
    Effort(8, 8, "left_to_right"),
    Effort(6, 3, "threshold", 0.6),
    Effort(5, 5, "threshold", 0.0),
)


@dataclass(frozen=True)
class Arrival:
    """A request, the step before which it is submitted, and the step before which it is cancelled, if ever."""

    request: Request
    at: int = 0
    cancel_at: int | None = None


def run_schedule(engine: Engine, arrivals: list[Arrival]) -> dict[str, Completion]:
    """Submit, cancel and step until everything is done; the streamed tokens must be the completions' own."""
    done: dict[str, Completion] = {}
    streamed: dict[str, tuple[int, ...]] = {a.request.id: () for a in arrivals}
    last = max((max(a.at, a.cancel_at or 0) for a in arrivals), default=0)
    for step in itertools.count():
        if engine.idle and step > last:
            return done
        for arrival in arrivals:
            if arrival.at == step:
                engine.submit(arrival.request)
            if arrival.cancel_at == step:
                engine.cancel(arrival.request.id)
        for event in engine.step():
            streamed[event.request_id] += event.token_ids
            if event.completion is not None:
                assert event.request_id not in done
                done[event.request_id] = event.completion
                assert event.completion.token_ids == streamed[event.request_id]
    raise AssertionError


def assert_lossless(table: PrefixTable, requests: list[Request], engine: Engine, context: int = 64) -> None:
    """The gate: each request's tokens are those of its plain decoding alone."""
    done = {c.request_id: c for c in engine.generate(requests)}
    for one in requests:
        assert done[one.id].token_ids == solo_tokens(table, one, context), one


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.7, 1.3]),
    top_k=st.sampled_from([None, 1, 3]),
    top_p=st.sampled_from([None, 0.5, 0.9]),
    seed=st.integers(-(2**63), 2**63 - 1),
)
STOPS = st.builds(
    StopRules,
    max_tokens=st.integers(1, 30),
    stop_ids=st.sets(st.integers(0, 5), max_size=1).map(frozenset),
    stop_strings=st.sampled_from([(), (), ("ab",), ("cab", "ff")]),
)


@st.composite
def schedules(draw: st.DrawFn, cancellations: bool) -> list[Arrival]:
    arrivals = []
    for index in range(draw(st.integers(1, 7))):
        prompt = draw(st.lists(st.integers(0, 5), min_size=1, max_size=12))
        one = Request(f"r{index}", tuple(prompt), draw(STOPS), draw(SAMPLINGS), draw(st.sampled_from(EFFORTS)))
        at = draw(st.integers(0, 6))
        cancel_at = draw(st.none() | st.integers(at, at + 6)) if cancellations else None
        arrivals.append(Arrival(one, at, cancel_at))
    return arrivals


class TestLossless:
    @given(schedules(cancellations=False), st.sampled_from(SKILLS), st.integers(1, 5), st.sampled_from([16, 24, 64]))
    @settings(max_examples=60, deadline=None)
    def test_any_schedule_gives_every_request_its_solo_text(
        self, arrivals: list[Arrival], skill: Skill, max_rows: int, context: int
    ) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cluster.engine, "_PREFILL_CHUNK_TOKENS", 4)
            done = run_schedule(table_engine(TABLE, skill, max_rows, context), arrivals)
        assert done.keys() == {a.request.id for a in arrivals}
        for arrival in arrivals:
            assert done[arrival.request.id].token_ids == solo_tokens(TABLE, arrival.request, context)

    @given(schedules(cancellations=True), st.sampled_from(SKILLS), st.integers(1, 4))
    @settings(max_examples=40, deadline=None)
    def test_cancelling_at_any_round_touches_no_other_request(
        self, arrivals: list[Arrival], skill: Skill, max_rows: int
    ) -> None:
        done = run_schedule(table_engine(TABLE, skill, max_rows), arrivals)
        assert done.keys() >= {a.request.id for a in arrivals if a.cancel_at is None}
        for arrival in arrivals:
            if arrival.request.id in done:
                assert done[arrival.request.id].token_ids == solo_tokens(TABLE, arrival.request)

    @given(schedules(cancellations=False), st.sampled_from(SKILLS))
    @settings(max_examples=25, deadline=None)
    def test_the_drafters_context_may_end_first(self, arrivals: list[Arrival], skill: Skill) -> None:
        done = run_schedule(table_engine(TABLE, skill, 3, context=40, drafter_context=14), arrivals)
        for arrival in arrivals:
            assert done[arrival.request.id].token_ids == solo_tokens(TABLE, arrival.request, context=40)

    @given(schedules(cancellations=False), st.sampled_from([0.5, 2.0]), st.integers(2, 5))
    @settings(max_examples=25, deadline=None)
    def test_a_lenient_text_does_not_depend_on_its_neighbours(
        self, arrivals: list[Arrival], margin: float, max_rows: int
    ) -> None:
        lenient = [replace(a, request=replace(a.request, leniency=Leniency("margin", margin))) for a in arrivals]
        done = run_schedule(table_engine(TABLE, "random", max_rows), lenient)
        for arrival in lenient:
            alone = run_one(table_engine(TABLE, "random", max_rows=1), arrival.request)
            assert done[arrival.request.id].token_ids == alone.token_ids
            assert done[arrival.request.id].stats.accepted_per_round == alone.stats.accepted_per_round

    def test_the_gate_notices_a_verifier_that_accepts_everything(self, monkeypatch: pytest.MonkeyPatch) -> None:
        requests = [request(prompt=(i, 3), effort=Effort(4), name=f"r{i}") for i in range(4)]
        assert_lossless(TABLE, requests, table_engine(TABLE, "random"))

        def accept_all(_margins: Tensor, _rules: object, length: Tensor) -> Tensor:
            return length

        monkeypatch.setattr(verify, "accepted_prefix", accept_all)
        with pytest.raises(AssertionError):
            assert_lossless(TABLE, requests, table_engine(TABLE, "random"))

    def test_the_gate_notices_a_lenient_request(self) -> None:
        requests = [request(effort=Effort(4), leniency=Leniency("margin", 3.0))]
        with pytest.raises(AssertionError):
            assert_lossless(TABLE, requests, table_engine(TABLE, "random"))

    def test_the_gate_notices_a_row_that_is_not_moved(self, monkeypatch: pytest.MonkeyPatch) -> None:
        requests = [request(prompt=(i, 3), max_tokens=3 + 5 * i, effort=Effort(2), name=f"r{i}") for i in range(4)]
        engine = table_engine(TABLE, "chain")
        monkeypatch.setattr(engine.verifier.cache, "move_row", lambda *_: None)
        with pytest.raises(AssertionError):
            assert_lossless(TABLE, requests, engine)


class TestDrafters:
    """What the statistics say about drafters of known skill."""

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    @pytest.mark.parametrize("effort", [e for e in EFFORTS if e], ids=str)
    def test_an_oracle_is_accepted_wholly(self, effort: Effort, temperature: float) -> None:
        one = request(max_tokens=30, effort=effort, sampling=Sampling(temperature, seed=5))
        stats = run_one(table_engine(TABLE, "oracle"), one).stats
        assert stats.accepted_per_round == stats.proposed_per_round
        assert stats.own_sample_disagreements == 0
        assert all(m == 0.0 for margins in stats.required_margins for m in margins)

    def test_an_oracle_in_a_shifting_batch_is_accepted_wholly(self) -> None:
        """Rows end and move all the time; the drafter's context must follow them."""
        requests = [
            request(prompt=range(i % 5 + 1), max_tokens=5 + 3 * (i % 4), effort=Effort(1 + i % 4), name=f"r{i}")
            for i in range(12)
        ]
        for completion in table_engine(TABLE, "oracle", max_rows=3).generate(requests):
            assert completion.stats.accepted_per_round == completion.stats.proposed_per_round

    def test_a_wrong_drafter_is_never_accepted(self) -> None:
        stats = run_one(table_engine(TABLE, "wrong"), request(max_tokens=20, effort=Effort(4))).stats
        assert stats.num_accepted_draft_tokens == 0
        assert stats.num_spec_rounds == 18  # the first token comes from the prefill, the last needs no draft

    def test_left_to_right_passes_pay_where_slots_depend_on_each_other(self) -> None:
        one, order = request(max_tokens=40), "left_to_right"
        rounds = [
            run_one(table_engine(TABLE, "chain"), replace(one, effort=Effort(8, n, order))).stats.num_spec_rounds
            for n in (1, 8)
        ]
        assert rounds[1] < rounds[0]


class TestStats:
    def test_proposed_counts_what_the_limit_left_room_for(self) -> None:
        """12 tokens: one from the prefill, then 8 + 1, then the last two need one drafted token."""
        stats = run_one(table_engine(TABLE, "oracle"), request(max_tokens=12, effort=Effort(8))).stats
        assert stats.proposed_per_round == [8, 1]
        assert stats.accepted_per_round == [8, 1]

    def test_draft_forwards_are_the_passes(self) -> None:
        effort = Effort(8, 4, "left_to_right")
        stats = run_one(table_engine(TABLE, "oracle"), request(max_tokens=19, effort=effort)).stats
        assert stats.proposed_per_round == [8, 8]
        assert stats.draft_forwards == 8

    def test_plain_decoding_drafts_nothing(self) -> None:
        stats = run_one(table_engine(TABLE), request(max_tokens=7)).stats
        assert (stats.num_spec_rounds, stats.num_draft_tokens, stats.draft_forwards) == (0, 0, 0)

    def test_required_margins_end_at_the_first_mismatch(self) -> None:
        stats = run_one(table_engine(TABLE, "wrong"), request(max_tokens=20, effort=Effort(4))).stats
        assert all(len(margins) == 1 and margins[0] > 0 for margins in stats.required_margins)

    def test_lossless_decoding_disagrees_nowhere(self) -> None:
        one = request(max_tokens=20, effort=Effort(4, 2), sampling=Sampling(0.9, seed=3))
        stats = run_one(table_engine(TABLE, "chain"), one).stats
        assert stats.own_sample_disagreements == 0

    def test_greedy_lossless_decoding_regrets_nothing(self) -> None:
        stats = run_one(table_engine(TABLE, "chain"), request(max_tokens=20, effort=Effort(4, 2))).stats
        assert stats.regret_nats == 0.0

    def test_nll_is_that_of_plain_decoding(self) -> None:
        one = request(max_tokens=20, effort=Effort(4, 2), sampling=Sampling(0.9, seed=3))
        ours = run_one(table_engine(TABLE, "chain"), one).stats.nll_nats
        assert ours == pytest.approx(run_one(table_engine(TABLE), plain(one)).stats.nll_nats, abs=1e-5)

    def test_a_lenient_request_counts_its_disagreements(self) -> None:
        one = request(max_tokens=20, effort=Effort(1), leniency=Leniency("margin", 50.0))
        stats = run_one(table_engine(TABLE, "wrong"), one).stats
        assert stats.own_sample_disagreements == stats.num_accepted_draft_tokens == 9
        assert stats.regret_nats > 0

    def test_accepted_never_exceeds_what_was_delivered(self) -> None:
        """A stop id inside an accepted block ends the count there."""
        text = solo_tokens(TABLE, request(max_tokens=20))
        stop = StopRules(20, frozenset({text[3]}))
        done = run_one(table_engine(TABLE, "oracle"), request(effort=Effort(8), stop=stop))
        assert done.token_ids == text[: text.index(text[3]) + 1]
        assert done.stats.accepted_per_round == [len(done.token_ids) - 1]

    def test_times_are_filled(self) -> None:
        stats = run_one(table_engine(TABLE), request(effort=Effort(4))).stats
        assert stats.ttft_s is not None
        assert stats.latency_s is not None
        assert 0 < stats.ttft_s <= stats.latency_s


class TestEnds:
    TEXT = solo_tokens(TABLE, request(max_tokens=40))

    @pytest.mark.parametrize("skill", ["oracle", "chain"])
    @pytest.mark.parametrize("index", range(20))
    def test_a_stop_id_at_any_index_ends_the_text_there(self, index: int, skill: Skill) -> None:
        stop = StopRules(40, frozenset({self.TEXT[index]}))
        done = run_one(table_engine(TABLE, skill), request(effort=Effort(8), stop=stop))
        assert done.token_ids == self.TEXT[: self.TEXT.index(self.TEXT[index]) + 1]
        assert done.finish_reason == "stop"

    @pytest.mark.parametrize("skill", SKILLS)
    @pytest.mark.parametrize("limit", [1, 8, 9, 19])
    def test_max_tokens_is_met_exactly(self, limit: int, skill: Skill) -> None:
        done = run_one(table_engine(TABLE, skill), request(max_tokens=limit, effort=Effort(8)))
        assert done.token_ids == self.TEXT[:limit]
        assert done.finish_reason == "length"

    @pytest.mark.parametrize("block", range(1, 9))
    def test_a_stop_string_across_blocks_ends_like_plain_decoding(self, block: int) -> None:
        word = spell(list(self.TEXT[6:9]))
        stop = StopRules(40, stop_strings=(word,))
        done = run_one(table_engine(TABLE, "oracle"), request(effort=Effort(block), stop=stop))
        assert done.finish_reason == "stop"
        assert done.token_ids == self.TEXT[: spell(list(self.TEXT)).index(word) + 3]


class TestContext:
    @pytest.mark.parametrize("skill", [None, "oracle", "chain"])
    def test_a_prompt_one_short_of_the_context_gives_one_token(self, skill: Skill | None) -> None:
        engine = table_engine(TABLE, skill, context=16)
        done = run_one(engine, request(prompt=[1] * 15, effort=Effort(4) if skill else None))
        assert len(done.token_ids) == 1
        assert done.finish_reason == "length"

    @pytest.mark.parametrize("length", [16, 17, 40])
    def test_a_prompt_that_fills_the_context_is_refused(self, length: int) -> None:
        message = f"Expected a prompt shorter than the context of 16 tokens, got {length}; shorten it"
        with pytest.raises(RequestError, match=message):
            table_engine(TABLE, context=16).submit(request(prompt=[1] * length))

    @pytest.mark.parametrize("skill", SKILLS)
    @pytest.mark.parametrize("prompt_len", range(1, 16))
    def test_text_and_context_end_together(self, prompt_len: int, skill: Skill) -> None:
        engine = table_engine(TABLE, skill, context=16)
        done = run_one(engine, request(prompt=[1] * prompt_len, max_tokens=50, effort=Effort(8)))
        assert len(done.token_ids) == 16 - prompt_len
        assert done.finish_reason == "length"
        assert done.token_ids == solo_tokens(TABLE, request(prompt=[1] * prompt_len, max_tokens=50), context=16)

    def test_no_draft_reaches_beyond_the_drafters_context(self) -> None:
        engine = table_engine(TABLE, "oracle", context=40, drafter_context=12)
        run_one(engine, request(prompt=[1, 2], max_tokens=30, effort=Effort(8)))
        assert isinstance(engine.drafter, TableDrafter)
        for call in engine.drafter.calls:
            assert call.anchor_positions[0] + call.lengths[0] < 12

    def test_beyond_the_drafters_context_nothing_is_kept_for_it(self) -> None:
        """Features that no draft call will fetch must not pile up."""
        engine = table_engine(TABLE, "oracle", context=60, drafter_context=8)
        engine.submit(request(prompt=[1, 2], max_tokens=50, effort=Effort(4)))
        held = []
        while not engine.idle:
            engine.step()
            held.append(len(engine._journal))
        assert max(held) <= 2


class TestFailure:
    """A token after which the verifier's logits are NaN for good."""

    POISONED = PrefixTable(poison=5)

    def healthy(self, count: int) -> list[Request]:
        """Requests whose own text never meets the poison; what a drafter proposes may."""
        found = []
        for index, prompt in enumerate(itertools.product(range(5), repeat=3)):
            sampling = Sampling(0.7 * (index % 2), seed=index)
            one = request(prompt, 12, Effort(4), sampling, name=f"good{index}")
            if len(solo_tokens(self.POISONED, one)) == 12:
                found.append(one)
        assert len(found) >= count
        return found[:count]

    @pytest.mark.parametrize("skill", SKILLS)
    def test_a_poisoned_prompt_fails_alone(self, skill: Skill) -> None:
        good = self.healthy(6)
        bad = request(prompt=(1, 5), effort=Effort(4), name="bad")
        requests = [*good[:3], bad, *good[3:]]
        done = {c.request_id: c for c in table_engine(self.POISONED, skill, max_rows=3).generate(requests)}
        assert (done["bad"].finish_reason, done["bad"].token_ids) == ("error", ())
        assert done["bad"].error == "the verifier's logits are not finite"
        for one in good:
            assert done[one.id].error is None
            assert done[one.id].token_ids == solo_tokens(self.POISONED, one)

    @given(st.integers(0, 200), st.sampled_from(SKILLS), st.integers(1, 8))
    @settings(max_examples=60, deadline=None)
    def test_a_row_that_fails_midway_fails_like_plain_decoding(self, seed: int, skill: Skill, block: int) -> None:
        """Never a token after the poison, whoever drafted it, and the same end as without drafts."""
        table = PrefixTable(seed=seed, poison=5, sharpness=1.0)
        one = request(max_tokens=20, effort=Effort(block), sampling=Sampling(1.0, seed=seed))
        ours = run_one(table_engine(table, skill), one)
        alone = run_one(table_engine(table, None, max_rows=1), plain(one))
        assert ours.finish_reason == alone.finish_reason
        if alone.finish_reason == "error":
            assert ours.token_ids == alone.token_ids[: len(ours.token_ids)]
        else:
            assert ours.token_ids == alone.token_ids


class TestRequests:
    def refusal(self, engine: Engine, one: Request, message: str) -> None:
        with pytest.raises(RequestError, match=message):
            engine.submit(one)
        assert engine.idle

    def test_an_empty_prompt(self) -> None:
        self.refusal(
            table_engine(TABLE), request(prompt=()), "Expected a prompt of at least one token, got an empty one"
        )

    @pytest.mark.parametrize("token", [-1, 6])
    def test_a_token_outside_the_vocabulary(self, token: int) -> None:
        self.refusal(
            table_engine(TABLE), request(prompt=(1, token)), r"Expected token ids in 0 \.\. 5, got one outside"
        )

    def test_an_effort_without_a_drafter(self) -> None:
        self.refusal(table_engine(TABLE, None), request(effort=Effort(2)), "this engine has no drafter")

    def test_a_block_larger_than_the_drafters(self) -> None:
        self.refusal(table_engine(TABLE), request(effort=Effort(9)), r"Expected a block of at most 8 tokens .*, got 9")

    def test_stop_strings_without_a_tokenizer(self) -> None:
        engine = table_engine(TABLE)
        engine.decode = None
        self.refusal(engine, request(stop=StopRules(5, stop_strings=("x",))), "stop strings")

    def test_an_id_in_flight(self) -> None:
        engine = table_engine(TABLE)
        engine.submit(request(name="same"))
        with pytest.raises(RequestError, match="Expected a request id not in flight, got 'same' again"):
            engine.submit(request(name="same"))

    def test_an_id_is_free_again_after_its_end(self) -> None:
        engine = table_engine(TABLE)
        assert run_one(engine, request(name="same")) != run_one(engine, request(name="same", max_tokens=3))

    def test_the_same_id_twice_in_a_batch(self) -> None:
        with pytest.raises(ValueError, match="Expected unique request ids, got 'r' twice"):
            list(table_engine(TABLE).generate([request(), request()]))

    def test_a_bad_request_in_a_batch_runs_nothing(self) -> None:
        engine = table_engine(TABLE)
        with pytest.raises(RequestError):
            list(engine.generate([request(name="a"), request(prompt=(), name="b")]))
        assert engine.idle

    def test_no_rows(self) -> None:
        with pytest.raises(ValueError, match="Expected max_rows >= 1, got 0"):
            table_engine(TABLE, max_rows=0)


class TestRows:
    def test_no_more_than_max_rows_run_at_a_time(self) -> None:
        engine = table_engine(TABLE, "chain", max_rows=2)
        for i in range(5):
            engine.submit(request(prompt=(i,), effort=Effort(2), name=f"r{i}"))
        while not engine.idle:
            engine.step()
        assert isinstance(engine.drafter, TableDrafter)
        assert max(len(call.anchors) for call in engine.drafter.calls) == 2
        assert engine.verifier.cache.rows.keys() == {0, 1}  # type: ignore[attr-defined]

    def test_requests_are_admitted_in_their_order(self) -> None:
        engine = table_engine(TABLE, max_rows=1)
        done = [c.request_id for c in engine.generate([request(name=n) for n in ("b", "a", "c")])]
        assert done == ["b", "a", "c"]

    def test_cancelling_a_waiting_request(self) -> None:
        engine = table_engine(TABLE, max_rows=1)
        engine.submit(request(name="first"))
        engine.submit(request(name="second"))
        assert engine.cancel("second")
        assert [c.request_id for c in engine.generate([request(name="third")])] == ["first", "third"]

    def test_cancelling_frees_the_row_at_once(self) -> None:
        engine = table_engine(TABLE, max_rows=1)
        engine.submit(request(name="first", max_tokens=60))
        engine.step()
        assert engine.cancel("first")
        assert engine.idle
        assert run_one(engine, request(name="second")).token_ids == solo_tokens(TABLE, request())

    def test_cancelling_something_unknown_says_so(self) -> None:
        assert not table_engine(TABLE).cancel("nobody")


class TestJournal:
    """What a drafter is told: the context of its rows, and every move."""

    def entries(self, requests: list[Request], max_rows: int) -> list[ContextUpdate | RowMove]:
        engine = table_engine(TABLE, "chain", max_rows)
        list(engine.generate(requests))
        assert isinstance(engine.drafter, TableDrafter)
        return [entry for call in engine.drafter.calls for entry in call.journal]

    def test_a_single_row_is_told_its_prompt_and_then_each_round(self) -> None:
        entries = self.entries([request(prompt=(1, 2, 3), max_tokens=8, effort=Effort(1))], 1)
        assert all(isinstance(e, ContextUpdate) for e in entries)
        shapes = [(e.first_positions, e.features.shape[1]) for e in entries if isinstance(e, ContextUpdate)]
        assert shapes[0] == ((0,), 3)
        assert shapes[1] == ((3,), 2)

    def test_requests_without_effort_are_not_told(self) -> None:
        engine = table_engine(TABLE, "chain")
        list(engine.generate([request(name=f"r{i}", prompt=(i,)) for i in range(5)]))
        assert isinstance(engine.drafter, TableDrafter)
        assert engine.drafter.calls == []
        assert engine._journal == []

    def test_a_finished_row_is_replaced_by_the_last(self) -> None:
        requests = [request(prompt=(i,), max_tokens=4 + 8 * i, effort=Effort(1), name=f"r{i}") for i in range(3)]
        moves = [e for e in self.entries(requests, 3) if isinstance(e, RowMove)]
        assert moves[0] == RowMove(source=2, target=0)

    def test_a_row_the_drafter_never_heard_of_is_not_moved(self) -> None:
        """A plain row is admitted last and moves up, because the first was cancelled before any round."""
        engine = table_engine(TABLE, "oracle")
        for name, effort in (("plain", None), ("drafted", Effort(2)), ("last", None)):
            engine.submit(request(name=name, effort=effort))
        while len(engine._rows) < 3:
            engine.step()
        engine.cancel("plain")
        done = {c.request_id: c for c in engine.generate([])}
        assert done.keys() == {"drafted", "last"}
        assert {c.token_ids for c in done.values()} == {solo_tokens(TABLE, request())}

    def test_features_travel_in_the_verifiers_dtype(self) -> None:
        entries = self.entries([request(effort=Effort(2))], 1)
        assert {e.features.dtype for e in entries if isinstance(e, ContextUpdate)} == {torch.float32}
