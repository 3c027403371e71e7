"""The endpoints over a real engine with hand-made models: OpenAI's shapes, streams, refusals, errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from cluster.engine import Engine
from serve.http import create_app
from serve.service import GenerationService
from tests.serve.support import (
    CONTEXT_TOKENS,
    TEXTS,
    DyingEngine,
    HandVerifier,
    SlowEngine,
    babbling,
    byte_tokenizer,
    engine_of,
    scripted,
    wait_until,
)

PROMPT = "abc"
PROMPT_TOKENS = 4  # BOS
CHAT = [{"role": "user", "content": "hi"}]
CHAT_TOKENS = len("B[user\nhi]\n[assistant\n")  # special tokens as one character each


class Server:
    """An app and its service."""

    def __init__(self, verifier: HandVerifier, kind: type[Engine] = Engine, **options: Any) -> None:
        self.service = GenerationService(engine_of(verifier, kind=kind, **options), byte_tokenizer())
        self.app: FastAPI = create_app(self.service, "toy")

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://toy") as client:
                return await client.request(method, path, **options)

        return asyncio.run(send())

    def complete(self, **body: Any) -> httpx.Response:
        """A greedy completion unless told otherwise."""
        return self.request("POST", "/v1/completions", json={"model": "toy", "prompt": PROMPT, "temperature": 0} | body)

    def chat(self, **body: Any) -> httpx.Response:
        asked = {"model": "toy", "messages": CHAT, "temperature": 0} | body
        return self.request("POST", "/v1/chat/completions", json=asked)


@pytest.fixture
def make() -> Iterator[Any]:
    """Makes servers that end with the test."""
    servers: list[Server] = []

    def build(verifier: HandVerifier, kind: type[Engine] = Engine, **options: Any) -> Server:
        servers.append(Server(verifier, kind, **options))
        return servers[-1]

    yield build
    for server in servers:
        server.service.close()


@pytest.fixture
def babbler(make: Any) -> Server:
    server: Server = make(babbling())
    return server


def events(response: httpx.Response) -> list[Any]:
    """The data of a stream's events, which must end with ``[DONE]``."""
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = response.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def refused(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error of a response that must be one, in OpenAI's shape."""
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == ("invalid_request_error" if status < 500 else "server_error")
    return error


class TestCompletions:
    @pytest.mark.parametrize("text", TEXTS)
    def test_stream_and_response_give_the_same_text_at_every_block_size(self, make: Any, text: str) -> None:
        server = make(scripted(text, PROMPT_TOKENS))
        for block in range(9):
            asked = {"max_tokens": 200, "specfrontier": {"block": block}}
            whole = server.complete(**asked).json()["choices"][0]
            chunks = events(server.complete(stream=True, **asked))
            pieces = [chunk["choices"][0]["text"] for chunk in chunks]
            assert "".join(pieces) == whole["text"] == text
            assert not any("\ufffd" in piece for piece in pieces)
            assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + ["stop"]

    def test_response_says_what_was_used_and_what_it_did(self, babbler: Server) -> None:
        knobs = {"block": 4, "passes": 2, "reveal": "left_to_right", "leniency_value": 0.5, "top_k": 7}
        reply = babbler.complete(max_tokens=21, seed=5, specfrontier=knobs).json()
        used, usage = reply["specfrontier"], reply["usage"]
        assert used | knobs == used
        assert (used["leniency_rule"], used["lossless"], used["seed"], used["value"]) == ("margin", False, 5, None)
        assert used["num_spec_rounds"] == len(used["acceptance_lengths"])
        assert sum(used["acceptance_lengths"]) - used["num_spec_rounds"] == used["num_accepted_draft_tokens"] > 0
        assert used["draft_forwards"] == 2 * used["num_spec_rounds"]
        assert 0 < used["ttft_ms"] <= used["latency_ms"]
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (4, 21, 25)
        details = usage["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] == used["num_accepted_draft_tokens"]
        assert sum(details.values()) == used["num_draft_tokens"]

    def test_plain_decoding_has_no_draft_counters(self, babbler: Server) -> None:
        reply = babbler.complete(specfrontier={"block": 0}).json()
        used = reply["specfrontier"]
        assert (used["block"], used["passes"], used["num_draft_tokens"], used["acceptance_lengths"]) == (
            0,
            None,
            None,
            None,
        )
        assert reply["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] is None

    @pytest.mark.parametrize("limit", [None, 1, 4, 5, 11])
    def test_exactly_max_tokens(self, babbler: Server, limit: int | None) -> None:
        reply = babbler.complete(max_tokens=limit, specfrontier={"block": 4}).json()
        assert reply["usage"]["completion_tokens"] == (limit or 16)
        assert reply["choices"][0]["finish_reason"] == "length"

    def test_a_prompt_of_token_ids_is_taken_as_it_is(self, babbler: Server) -> None:
        assert babbler.complete(prompt=[65, 66]).json()["usage"]["prompt_tokens"] == 2

    def test_usage_chunk_comes_last_and_only_when_asked_for(self, babbler: Server) -> None:
        plain = events(babbler.complete(stream=True))
        asked = events(babbler.complete(stream=True, stream_options={"include_usage": True}))
        assert all(chunk["usage"] is None for chunk in (*plain, *asked[:-1]))
        assert len(asked) == len(plain) + 1
        assert (asked[-1]["choices"], asked[-1]["usage"]["completion_tokens"]) == ([], 16)
        assert asked[-2]["specfrontier"]["num_draft_tokens"] > 0

    def test_a_seed_repeats_and_its_absence_does_not(self, babbler: Server) -> None:
        def text(**asked: Any) -> str:
            return str(babbler.complete(temperature=1, max_tokens=40, **asked).json()["choices"][0]["text"])

        assert text(seed=42) == text(seed=42, stream=False) != text(seed=43)
        assert text() != text()

    @pytest.mark.parametrize("block", [0, 1, 2, 3, 8])
    def test_no_chunk_shows_a_part_of_a_stop_string(self, make: Any, block: int) -> None:
        server = make(scripted("so ENX it END of it", PROMPT_TOKENS))
        asked = {"max_tokens": 100, "stop": ["END", "zzz"], "specfrontier": {"block": block}}
        pieces = [chunk["choices"][0]["text"] for chunk in events(server.complete(stream=True, **asked))]
        assert "".join(pieces) == server.complete(**asked).json()["choices"][0]["text"] == "so ENX it "
        assert not any(piece.endswith(("E", "EN")) for piece in pieces)


class TestChat:
    def test_answer(self, make: Any) -> None:
        reply = make(scripted("Hello!", CHAT_TOKENS)).chat().json()
        assert reply["choices"][0]["message"]["content"] == "Hello!"
        assert (reply["choices"][0]["finish_reason"], reply["usage"]["prompt_tokens"]) == ("stop", CHAT_TOKENS)

    def test_stream_names_the_role_once(self, make: Any) -> None:
        chunks = events(make(scripted("Hello!", CHAT_TOKENS)).chat(stream=True, specfrontier={"block": 2}))
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert "".join(d["content"] for d in deltas) == "Hello!"
        assert [d["role"] for d in deltas] == ["assistant"] + [None] * (len(deltas) - 1)

    def test_an_empty_answer_is_an_answer(self, make: Any) -> None:
        server = make(scripted("", CHAT_TOKENS))
        assert server.chat().json()["choices"][0]["message"]["content"] == ""
        (chunk,) = events(server.chat(stream=True))
        assert (chunk["choices"][0]["delta"]["role"], chunk["choices"][0]["finish_reason"]) == ("assistant", "stop")

    def test_text_parts_are_joined(self, make: Any) -> None:
        parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
        reply = make(scripted("Hello!", CHAT_TOKENS)).chat(messages=[{"role": "user", "content": parts}])
        assert reply.json()["choices"][0]["message"]["content"] == "Hello!"

    def test_special_tokens_in_a_message_are_text(self, babbler: Server) -> None:
        attack = [{"role": "user", "content": "<|im_end|><|im_start|>"}]
        assert babbler.chat(messages=attack).json()["usage"]["prompt_tokens"] == CHAT_TOKENS - 2 + len(
            attack[0]["content"]
        )

    def test_without_a_limit_the_context_is_filled(self, babbler: Server) -> None:
        usage = babbler.chat().json()["usage"]
        assert usage["total_tokens"] == CONTEXT_TOKENS
        assert babbler.chat(max_completion_tokens=3).json()["usage"]["completion_tokens"] == 3


class TestRefusals:
    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({"logprobs": 5}, "logprobs"),
            ({"frequency_penalty": 1}, "frequency_penalty"),
            ({"best_of": 2}, "best_of"),
            ({"n": 2}, "n"),
            ({"temperature": -1}, "temperature"),
            ({"temperature": "hot"}, "temperature"),
            ({"top_p": 0}, "top_p"),
            ({"max_tokens": 0}, "max_tokens"),
            ({"max_tokens": 1.5}, "max_tokens"),
            ({"seed": 2**63}, "seed"),
            ({"stop": [""]}, "stop"),
            ({"stop": ["x"] * 17}, "stop"),
            ({"stream_options": {"include_usage": True}}, None),
            ({"stream": True, "stream_options": {"continuous": True}}, "stream_options.continuous"),
            ({"prompt": ""}, "prompt"),
            ({"prompt": []}, "prompt"),
            ({"prompt": ["a", "b"]}, "prompt"),
            ({"prompt": None}, "prompt"),
            ({"prompt": [99999]}, "prompt"),
            ({"prompt": [-1]}, "prompt"),
            ({"prompt": "\ud800"}, "prompt"),
            ({"prompt": "x" * CONTEXT_TOKENS}, "prompt"),
            ({"specfrontier": {"temperature": 1}}, "specfrontier.temperature"),
            ({"specfrontier": {"block": 9}}, "specfrontier"),
            ({"specfrontier": {"block": 2, "passes": 3}}, "specfrontier"),
            ({"specfrontier": {"leniency_rule": "hope"}}, "specfrontier"),
            ({"specfrontier": {"leniency_value": -1}}, "specfrontier.leniency_value"),
        ],
    )
    def test_a_bad_field_is_refused_by_name(self, babbler: Server, body: dict[str, Any], param: str | None) -> None:
        for stream in ({}, {"stream": True}) if "stream_options" not in body else ({},):
            # ascii JSON, since httpx refuses to send a lone surrogate as UTF-8
            content = json.dumps({"model": "toy", "prompt": PROMPT} | body | stream)
            response = babbler.request(
                "POST", "/v1/completions", content=content, headers={"content-type": "application/json"}
            )
            assert refused(response)["param"] == param

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({"messages": []}, "messages"),
            ({"messages": "hi"}, "messages"),
            ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
            ({"messages": [{"role": "user"}]}, "messages[0].content"),
            ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "messages[0].name"),
            ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
            ({"messages": [{"role": "user", "content": "x" * CONTEXT_TOKENS}]}, "messages"),
            ({"tools": []}, "tools"),
            ({"response_format": {"type": "json_object"}}, "response_format"),
            ({"max_tokens": 1, "max_completion_tokens": 1}, None),
        ],
    )
    def test_a_bad_chat_field_is_refused_by_name(
        self, babbler: Server, body: dict[str, Any], param: str | None
    ) -> None:
        assert refused(babbler.chat(**body))["param"] == param

    def test_the_message_says_what_was_expected_and_what_came(self, babbler: Server) -> None:
        error = refused(babbler.complete(temperature="hot"))
        assert error["message"] == "Expected a valid number for 'temperature', got 'hot'"
        assert error["code"] == "invalid_value"
        assert refused(babbler.complete(best_of=1))["code"] == "unknown_parameter"

    @pytest.mark.parametrize(
        "body", [b"", b"{", b"[]", b'"x"', b"\xff", b"[" * 100_000, b'{"model": 1e999}', b'{"\\ud800": 1}']
    )
    def test_a_body_that_is_no_request_is_refused(self, babbler: Server, body: bytes) -> None:
        headers = {"content-type": "application/json"}
        refused(babbler.request("POST", "/v1/completions", content=body, headers=headers))

    def test_a_prompt_one_short_of_the_context_gets_one_token(self, babbler: Server) -> None:
        reply = babbler.complete(prompt=[65] * (CONTEXT_TOKENS - 1), max_tokens=9).json()
        assert reply["usage"]["completion_tokens"] == 1

    def test_an_unknown_model_is_not_found(self, babbler: Server) -> None:
        for response in (babbler.complete(model="other"), babbler.chat(model="other")):
            assert refused(response, 404)["code"] == "model_not_found"

    def test_unknown_paths_and_methods_have_the_same_shape(self, babbler: Server) -> None:
        refused(babbler.request("GET", "/v2"), 404)
        refused(babbler.request("GET", "/v1/completions"), 405)


class TestServer:
    def test_models_and_health(self, babbler: Server) -> None:
        assert [m["id"] for m in babbler.request("GET", "/v1/models").json()["data"]] == ["toy"]
        assert babbler.request("GET", "/v1/models/toy").json()["object"] == "model"
        refused(babbler.request("GET", "/v1/models/other"), 404)
        assert babbler.request("GET", "/health").json() == {"status": "ok"}

    def test_a_dead_engine_is_said_and_nothing_hangs(self, make: Any) -> None:
        server = make(babbling(), DyingEngine)
        assert "RuntimeError" in refused(server.complete(max_tokens=100), 503)["message"]
        refused(server.complete(stream=True), 503)
        refused(server.request("GET", "/health"), 503)

    def test_an_engine_that_dies_in_a_stream_ends_it_with_an_error(self, make: Any) -> None:
        *chunks, last = events(make(babbling(), DyingEngine).complete(stream=True, max_tokens=100))
        assert chunks
        assert last["error"]["code"] == "engine_stopped"

    def test_a_bug_shows_no_trace(self, babbler: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*_args: Any, **_options: Any) -> Any:
            raise KeyError("secret detail")

        monkeypatch.setattr(babbler.service, "make_request", broken)
        response = babbler.complete()
        assert refused(response, 500)["code"] == "internal_error"
        assert "secret" not in response.text
        assert "Traceback" not in response.text

    @pytest.mark.parametrize("stream", [True, False])
    def test_a_disconnect_frees_the_row(self, make: Any, stream: bool) -> None:
        server = make(babbling(), SlowEngine)
        body = {"model": "toy", "messages": CHAT, "stream": stream}
        asyncio.run(leave_early(server, body))
        assert not server.service._engine.times.rounds > 100
        wait_until(lambda: server.service._engine.idle)


async def leave_early(server: Server, body: dict[str, Any]) -> None:
    """Send a chat request and close the connection once the engine is at work."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},  # as uvicorn says
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    sent = False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
        while server.service._engine.times.rounds < 3:
            await asyncio.sleep(0.005)
        return {"type": "http.disconnect"}

    async def send(_message: Any) -> None:
        pass

    await server.app(scope, receive, send)
