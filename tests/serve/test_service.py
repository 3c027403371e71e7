"""The service over a real engine with hand-made models: text, seeds, stops, cancellation, failure."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest

from cluster.decoding import Effort, Leniency
from cluster.engine import Engine, RequestError
from serve.knobs import Knobs
from serve.service import EngineStoppedError, GenerationError, GenerationService, Outcome
from tests.serve.support import (
    CONTEXT_TOKENS,
    TEXTS,
    DyingEngine,
    HandVerifier,
    SlowEngine,
    babbling,
    byte_tokenizer,
    engine_of,
    ids_of,
    scripted,
    wait_until,
)

PROMPT = ids_of("abc")
PLAIN = Knobs(None)


@pytest.fixture
def serve() -> Iterator[Any]:
    """Makes services that end with the test."""
    services = []

    def make(verifier: HandVerifier, kind: type[Engine] = Engine, **options: Any) -> GenerationService:
        services.append(GenerationService(engine_of(verifier, kind=kind, **options), byte_tokenizer()))
        return services[-1]

    yield make
    for service in services:
        service.close()


async def collect(service: GenerationService, knobs: Knobs = PLAIN, **sampling: Any) -> tuple[list[str], Outcome]:
    """The deltas' texts and the outcome of one generation, greedy unless told otherwise."""
    request = service.make_request(PROMPT, knobs, **{"temperature": 0.0, **sampling})
    deltas = [delta async for delta in service.generate(request)]
    assert [d.outcome is None for d in deltas] == [True] * (len(deltas) - 1) + [False]
    outcome = deltas[-1].outcome
    assert outcome is not None
    return [d.text for d in deltas], outcome


class TestText:
    @pytest.mark.parametrize("text", TEXTS)
    def test_deltas_join_to_the_text_at_every_block_size(self, serve: Any, text: str) -> None:
        service = serve(scripted(text, len(PROMPT)))
        for block in range(9):
            knobs = Knobs(Effort(block)) if block else PLAIN
            pieces, outcome = asyncio.run(collect(service, knobs))
            assert "".join(pieces) == text
            assert not any("\ufffd" in piece for piece in pieces)
            assert (outcome.finish_reason, outcome.completion_tokens) == ("stop", len(ids_of(text)) + 1)

    @pytest.mark.parametrize("limit", [1, 4, 5, 11])
    def test_exactly_max_tokens_are_generated(self, serve: Any, limit: int) -> None:
        service = serve(babbling())
        pieces, outcome = asyncio.run(collect(service, Knobs(Effort(4)), max_tokens=limit))
        assert (outcome.finish_reason, outcome.completion_tokens) == ("length", limit)
        assert len("".join(pieces)) == limit

    def test_without_a_limit_the_context_ends_it(self, serve: Any) -> None:
        _, outcome = asyncio.run(collect(serve(babbling()), Knobs(Effort(8))))
        assert (outcome.finish_reason, outcome.completion_tokens) == ("length", CONTEXT_TOKENS - len(PROMPT))

    @pytest.mark.parametrize("block", [0, 1, 2, 3, 5, 8])
    def test_a_stop_string_split_over_blocks_is_never_seen(self, serve: Any, block: int) -> None:
        service = serve(scripted("so ENX it END of it", len(PROMPT)))
        knobs = Knobs(Effort(block)) if block else PLAIN
        pieces, outcome = asyncio.run(collect(service, knobs, stop=("END",)))
        assert "".join(pieces) == "so ENX it "
        assert (outcome.finish_reason, outcome.completion_tokens) == ("stop", len("so ENX it END"))

    def test_one_delta_per_committed_block(self, serve: Any) -> None:
        pieces, outcome = asyncio.run(collect(serve(babbling()), Knobs(Effort(4)), max_tokens=40))
        assert outcome.stats is not None
        assert len(pieces) == outcome.stats.verifier_forwards  # the prompt's own token comes first, then the blocks
        blocks = [accepted + 1 for accepted in outcome.stats.accepted_per_round]
        assert [len(p) for p in pieces[: len(blocks)]] == [1, *blocks[:-1]]


class TestSeeds:
    def test_a_seed_gives_the_same_text_beside_unseeded_neighbours(self, serve: Any) -> None:
        service = serve(babbling())
        asked = {"temperature": 1.0, "max_tokens": 60}

        async def crowd() -> list[str]:
            knobs = (PLAIN, Knobs(Effort(8)), Knobs(Effort(3), Leniency("margin", 2.0)))
            others = [collect(service, k, **asked) for k in knobs * 2]
            done = await asyncio.gather(*others, collect(service, Knobs(Effort(5)), seed=42, **asked))
            return ["".join(pieces) for pieces, _ in done]

        alone = "".join(asyncio.run(collect(service, PLAIN, seed=42, **asked))[0])
        *others, together = asyncio.run(crowd())
        assert together == alone
        assert len({alone, *others}) == 7  # unseeded requests differ

    def test_the_seed_drawn_for_an_unseeded_request_repeats_it(self, serve: Any) -> None:
        service = serve(babbling())
        first, outcome = asyncio.run(collect(service, temperature=1.0, max_tokens=30))
        again, _ = asyncio.run(collect(service, temperature=1.0, max_tokens=30, seed=outcome.request.sampling.seed))
        assert again == first


class TestRefusals:
    def test_empty_and_too_long_prompts(self, serve: Any) -> None:
        service = serve(babbling())
        with pytest.raises(RequestError, match="at least one token"):
            service.make_request((), PLAIN)
        with pytest.raises(RequestError, match="shorter than the context"):
            service.make_request((1,) * CONTEXT_TOKENS, PLAIN)

    def test_a_prompt_one_short_of_the_context_gets_one_token(self, serve: Any) -> None:
        service = serve(babbling())
        request = service.make_request((65,) * (CONTEXT_TOKENS - 1), Knobs(Effort(8)))

        async def run() -> list[Any]:
            return [delta async for delta in service.generate(request)]

        assert asyncio.run(run())[-1].outcome.completion_tokens == 1

    def test_an_id_in_flight_is_refused_without_harm_to_its_owner(self, serve: Any) -> None:
        service = serve(babbling(), SlowEngine)
        request = service.make_request(PROMPT, PLAIN, max_tokens=20)

        async def twice() -> list[Any]:
            async def run() -> int:
                return sum([len(d.text) async for d in service.generate(request)])

            return await asyncio.gather(run(), run(), return_exceptions=True)

        first, second = asyncio.run(twice())
        assert first == 20
        assert isinstance(second, RequestError)


class TestCancellation:
    def test_closing_the_generator_frees_the_row(self, serve: Any) -> None:
        service = serve(babbling(), SlowEngine)

        async def leave() -> None:
            async with aclosing(service.generate(service.make_request(PROMPT, Knobs(Effort(2))))) as deltas:
                await anext(deltas)

        asyncio.run(leave())
        wait_until(lambda: service._engine.idle)

    def test_cancelling_the_task_frees_the_row_and_no_other(self, serve: Any) -> None:
        service = serve(babbling(), SlowEngine, max_rows=2)

        async def run() -> Outcome:
            impatient = [asyncio.create_task(collect(service)) for _ in range(5)]  # some of them still wait for a row
            patient = asyncio.create_task(collect(service, max_tokens=30))
            await asyncio.sleep(0.05)
            for task in impatient:
                task.cancel()
            await asyncio.gather(*impatient, return_exceptions=True)
            return (await patient)[1]

        assert asyncio.run(run()).completion_tokens == 30
        wait_until(lambda: service._engine.idle)

    def test_the_row_of_a_client_whose_loop_is_closed_is_freed(self, serve: Any) -> None:
        service = serve(babbling(), SlowEngine)
        loop = asyncio.new_event_loop()
        deltas = service.generate(service.make_request(PROMPT, PLAIN))
        loop.run_until_complete(anext(deltas))
        loop.close()
        wait_until(lambda: service._engine.idle)

    def test_the_engine_is_used_by_its_own_thread_only(self, serve: Any) -> None:
        service = serve(babbling(), SlowEngine)
        asyncio.run(collect(service, max_tokens=5))
        assert service._engine.threads == {"engine"}


class TestFailure:
    def test_a_dying_engine_fails_what_runs_what_waits_and_what_comes(self, serve: Any) -> None:
        service = serve(babbling(), DyingEngine, max_rows=1)

        async def run() -> list[Any]:
            return await asyncio.gather(*(collect(service) for _ in range(3)), return_exceptions=True)

        for error in (*asyncio.run(run()), *asyncio.run(run())):
            assert isinstance(error, EngineStoppedError)
            assert "RuntimeError" in str(error)
            assert "secret detail" not in str(error)
        assert service.failure is not None

    def test_logits_that_are_not_finite_fail_one_request(self, serve: Any) -> None:
        verifier = babbling()
        healthy = verifier._logits
        verifier._logits = lambda t, p: healthy(t, p).masked_fill((t == PROMPT[0])[..., None], float("nan"))
        service = serve(verifier)
        with pytest.raises(GenerationError, match="not finite"):
            asyncio.run(collect_of(service, (65, PROMPT[0])))
        assert asyncio.run(collect_of(service, (65,))) == 5

    def test_closing_fails_what_is_in_flight(self, serve: Any) -> None:
        service = serve(babbling(), SlowEngine)

        async def run() -> None:
            task = asyncio.create_task(collect(service))
            await asyncio.sleep(0.03)
            await asyncio.to_thread(service.close)
            with pytest.raises(EngineStoppedError, match="shutting down"):
                await task

        asyncio.run(run())


async def collect_of(service: GenerationService, prompt: tuple[int, ...]) -> int:
    """Tokens generated for a prompt, five at most."""
    request = service.make_request(prompt, PLAIN, max_tokens=5)
    deltas = [delta async for delta in service.generate(request)]
    assert deltas[-1].outcome is not None
    return deltas[-1].outcome.completion_tokens
