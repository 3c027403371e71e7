"""Prove that leniency 0 is lossless: the pair's tokens equal plain autoregressive decoding, one by one, in float32.

    make prove                                   # 52 prompts, everything below; about an hour on two cores
    python -m benchmarks.prove --prompts 5       # a tenth of it, as CI runs it

For every prompt: greedy, and temperature 0.7 with two seeds; drafts of 1, 2 and 4 passes; batch 1 and ragged batch 8; both
models in one process and in two Ray actors. The reference is the same engine without drafts, one prompt at a time; its
greedy tokens are compared with `transformers`' own ``generate``. Any difference is printed and ends the run with status 1.
``--sabotage`` accepts every drafted token instead, and must fail.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jobs.ray_session  # isort: skip  (settles Ray's environment before Ray is imported)
import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM

from cluster.actors import PairResources, RayPair
from cluster.decoding import LOSSLESS, Effort, Leniency, Sampling, StopRules
from cluster.messages import Request
from cluster.models.loading import ModelSpec, load_tokenizer, model_directory, stop_ids
from cluster.pair import LocalPair, Pair, PairSpec
from jobs.tasks import get_task, render

_TASKS = ("text_json", "key_value", "humaneval", "chat")
_PASSES = (1, 2, 4)
_SETTINGS = {"greedy": Sampling(), "T=0.7 seed 0": Sampling(0.7, seed=0), "T=0.7 seed 1": Sampling(0.7, seed=1)}
_ACCEPT_ALL = Leniency("margin", 1e9)

Tokens = dict[str, tuple[int, ...]]


def prompts(tokenizer: Any, count: int) -> dict[str, tuple[int, ...]]:
    """``count`` held-out prompts, an equal share of every task."""
    found: dict[str, tuple[int, ...]] = {}
    for index, name in enumerate(_TASKS):
        share = count // len(_TASKS) + (index < count % len(_TASKS))
        for item in get_task(name).items("eval", share, seed=0):
            found[item.id] = tuple(render(tokenizer, item))
    return found


def decode(
    pair: Pair,
    texts: dict[str, tuple[int, ...]],
    stop: StopRules,
    sampling: Sampling,
    effort: Effort | None,
    leniency: Leniency = LOSSLESS,
) -> Tokens:
    """All prompts at once through a pair; its ``max_rows`` decides the batch."""
    requests = [Request(key, ids, stop, sampling, effort, leniency) for key, ids in texts.items()]
    return {done.request_id: done.token_ids for done in pair.generate(requests)}


def differences(label: str, got: Tokens, expected: Tokens) -> Iterator[str]:
    """One line per prompt whose tokens differ."""
    for key, tokens in expected.items():
        if got[key] != tokens:
            at = next((i for i, (a, b) in enumerate(zip(got[key], tokens, strict=False)) if a != b), "the end")
            yield f"{label}: {key} differs at token {at}"


def greedy_tokens(model: Any, ids: tuple[int, ...], stop: StopRules) -> tuple[int, ...]:
    """One prompt through the ``generate`` of a `transformers` model, greedy."""
    prompt = torch.tensor([ids])
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=stop.max_tokens,
        do_sample=False,
        eos_token_id=sorted(stop.stop_ids),
    )
    return tuple(out[0, len(ids) :].tolist())


def transformers_greedy(spec: ModelSpec, texts: dict[str, tuple[int, ...]], stop: StopRules) -> Tokens:
    """The same prompts through `transformers` alone."""
    model: Any = AutoModelForCausalLM.from_pretrained(model_directory(spec), dtype=torch.float32)
    return {key: greedy_tokens(model, ids, stop) for key, ids in texts.items()}


def make_pair(transport: str, spec: PairSpec) -> Pair:
    """A pair in this process or in two actors."""
    if transport == "local":
        return LocalPair(spec)
    return RayPair(spec, PairResources(0.5, 0.5))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``python -m benchmarks.prove``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=52)
    parser.add_argument("--tokens", type=int, default=32, help="most tokens per answer")
    parser.add_argument("--transport", nargs="+", choices=("local", "ray"), default=["local", "ray"])
    parser.add_argument("--drafter", default="demo")
    parser.add_argument("--sabotage", action="store_true", help="accept every drafted token; the proof must then fail")
    args = parser.parse_args(argv)

    torch.set_num_threads(1)
    verifier, drafter = ModelSpec(dtype="float32"), ModelSpec(args.drafter, dtype="float32")
    tokenizer = load_tokenizer(verifier)
    texts = prompts(tokenizer, args.prompts)
    stop = StopRules(args.tokens, stop_ids(tokenizer))
    plain = LocalPair(PairSpec(verifier, None, max_rows=1))
    print(f"{len(texts)} prompts, at most {args.tokens} tokens, float32, {torch.get_num_threads()} thread per process")
    expected = {name: decode(plain, texts, stop, s, None) for name, s in _SETTINGS.items()}
    found = list(differences("transformers", transformers_greedy(verifier, texts, stop), expected["greedy"]))
    compared = len(texts)

    leniency = _ACCEPT_ALL if args.sabotage else LOSSLESS
    grid = [(t, b, n, s) for t in args.transport for b in (1, 8) for n in _PASSES for s in _SETTINGS]
    pairs: dict[tuple[str, int], Pair] = {}
    for transport, batch, passes, setting in tqdm(grid, unit="run", file=sys.stderr):
        if transport == "ray":
            jobs.ray_session.start_ray()
        if (transport, batch) not in pairs:
            while pairs:
                pairs.popitem()[1].close()
            pairs[transport, batch] = make_pair(transport, PairSpec(verifier, drafter, max_rows=batch))
        got = decode(pairs[transport, batch], texts, stop, _SETTINGS[setting], Effort(8, passes), leniency)
        label = f"{transport}, batch {batch}, {passes} passes, {setting}"
        found += differences(label, got, expected[setting])
        compared += len(texts)
    print("\n".join(found))
    print(f"{compared} generations compared with plain autoregressive decoding, {len(found)} differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
