"""The whole server on the demo pair: Ray Serve, the official client, the command line."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

pytestmark = pytest.mark.slow

CHAT: Any = [{"role": "user", "content": "Name three colours of the rainbow. Use emoji 🌈 if you like."}]
KNOBS = {"specfrontier": {"block": 4, "passes": 2, "leniency_value": 0.5}}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def client(ray_cluster: None) -> Iterator[openai.OpenAI]:  # noqa: ARG001
    from ray import serve as rayserve  # tests that are deselected must not pay for it

    from serve.app import build

    port = free_port()
    rayserve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    rayserve.run(build({"max_rows": "1"}))
    yield openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=300, max_retries=0)
    rayserve.shutdown()


def test_chat_streams_what_it_answers(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "demo", "messages": CHAT, "temperature": 0.7, "seed": 1, "max_tokens": 40}
    whole = client.chat.completions.create(**asked, extra_body=KNOBS)
    stream = client.chat.completions.create(
        **asked, extra_body=KNOBS, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert text
    assert whole.usage == chunks[-1].usage
    assert whole.model_extra is not None
    used = whole.model_extra["specfrontier"]
    assert used | KNOBS["specfrontier"] == used
    assert (
        len([c for c in chunks if c.choices]) <= used["num_spec_rounds"] + 2
    )  # the prompt's token, a round without draft


def test_completion_equals_the_pair_in_this_process(client: openai.OpenAI) -> None:
    from cluster.decoding import Effort, StopRules
    from cluster.messages import Request
    from cluster.pair import LocalPair, PairSpec

    pair = LocalPair(PairSpec())
    prompt = "The capital of France is"
    ids = tuple(pair.tokenizer(prompt)["input_ids"])
    rules = StopRules(24, frozenset({pair.tokenizer.eos_token_id}))
    (own,) = pair.generate([Request("own", ids, rules, effort=Effort(pair.engine.drafter.max_block))])  # type: ignore[union-attr]
    served = client.completions.create(model="demo", prompt=prompt, temperature=0, max_tokens=24)
    assert served.choices[0].text == pair.tokenizer.decode(own.token_ids, skip_special_tokens=True)
    assert served.usage is not None
    assert served.usage.completion_tokens == len(own.token_ids)


def test_a_client_that_leaves_frees_the_only_row(client: openai.OpenAI) -> None:
    endless = client.chat.completions.create(model="demo", messages=CHAT, temperature=2, stream=True)
    next(iter(endless))
    endless.close()
    short = client.chat.completions.create(model="demo", messages=CHAT, max_tokens=2)
    assert short.usage is not None
    assert short.usage.completion_tokens <= 2


def test_errors_are_the_clients_own_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="logprobs"):
        client.chat.completions.create(model="demo", messages=CHAT, logprobs=True)
    with pytest.raises(openai.NotFoundError, match="other"):
        client.chat.completions.create(model="other", messages=CHAT)
    assert [model.id for model in client.models.list()] == ["demo"]


@pytest.mark.ray
def test_the_command_serves_until_it_is_interrupted() -> None:
    port = free_port()
    fresh = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH")}
    command = [sys.executable, "-m", "serve.app", "--port", str(port)]
    with subprocess.Popen(command, env=fresh, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            greeting = next(line for line in server.stdout if "serving" in line)
            assert f"http://127.0.0.1:{port}/v1" in greeting
            assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=60).json() == {"status": "ok"}
            server.send_signal(signal.SIGINT)
            assert server.wait(timeout=120) == 0
        finally:
            server.kill()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/health", timeout=10)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("colour=red", "settings among model, verifier"),
        ("max_rows=0", "Expected max_rows to be greater"),
        ("noise", "name=value"),
        ("verifier=nowhere/at-all", "nowhere/at-all"),
        ("dtype=int3", "dtype"),
        ("--port=99999", "choose another --port"),
    ],
)
def test_wrong_arguments_end_with_one_sentence(wrong: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    from serve.app import main

    with pytest.raises(SystemExit, match="2"):
        main([wrong])
    *_usage, sentence = capsys.readouterr().err.strip().splitlines()
    assert reason in sentence
