"""How fast the demo pair is on this machine: one interleaved run, medians of ratios.

    make bench            # or: python -m benchmarks.demo_speed --repeats 7

Greedy text → JSON answers in bfloat16, batch 1, one thread per model. In every repeat each arm decodes the same prompts,
the arms in rotating order: `transformers.generate`, our plain decoding, one-pass lossless drafting in one process, the same
in two Ray actors. A ratio is taken within a repeat (tokens per second, prefill included); reported are its median and
range. Where a round's time goes is read from the engine of the in-process pair.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jobs.ray_session  # isort: skip  (settles Ray's environment before Ray is imported)
import torch
from transformers import AutoModelForCausalLM

from benchmarks.prove import greedy_tokens
from cluster.actors import PairResources, RayPair
from cluster.decoding import Effort, StopRules
from cluster.messages import EngineTimes, Request
from cluster.models.loading import ModelSpec, load_tokenizer, model_directory, stop_ids
from cluster.pair import LocalPair, Pair, PairSpec
from jobs.sweep import device_name
from jobs.tasks import get_task, render

Arm = Callable[[], int]


def pair_arm(pair: Pair, prompts: list[tuple[int, ...]], stop: StopRules, effort: Effort | None) -> Arm:
    """Decode all prompts one after another; returns the tokens made."""

    def run() -> int:
        done = [pair.generate([Request(str(i), ids, stop, effort=effort)])[0] for i, ids in enumerate(prompts)]
        return sum(len(d.token_ids) for d in done)

    return run


def transformers_arm(model: Any, prompts: list[tuple[int, ...]], stop: StopRules) -> Arm:
    """The same through `transformers`."""
    return lambda: sum(len(greedy_tokens(model, ids, stop)) for ids in prompts)


def measure(arms: dict[str, Arm], repeats: int) -> dict[str, list[float]]:
    """Tokens per second of every arm in every repeat, the order rotating; one warm-up round is thrown away."""
    speeds: dict[str, list[float]] = {name: [] for name in arms}
    names = list(arms)
    for repeat in range(-1, repeats):
        shift = repeat % len(names)
        for name in names[shift:] + names[:shift]:
            started = time.perf_counter()
            tokens = arms[name]()
            if repeat >= 0:
                speeds[name].append(tokens / (time.perf_counter() - started))
    return speeds


def ratio(speeds: dict[str, list[float]], over: str, under: str) -> str:
    """``median (smallest – largest)`` of the per-repeat ratios."""
    values = [a / b for a, b in zip(speeds[over], speeds[under], strict=True)]
    return f"{statistics.median(values):.2f}× ({min(values):.2f}–{max(values):.2f})"


def shares(before: EngineTimes, after: EngineTimes) -> str:
    """Where the time of the rounds between two readings went."""
    draft, verify = after.draft_s - before.draft_s, after.verify_s - before.verify_s
    other = after.other_s - before.other_s
    total, rounds = draft + verify + other, after.rounds - before.rounds
    parts = {"draft": draft, "verify": verify, "everything else": other}
    text = ", ".join(f"{name} {value / rounds * 1e3:.1f} ms ({value / total:.0%})" for name, value in parts.items())
    return f"a round takes {total / rounds * 1e3:.1f} ms: {text}"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``python -m benchmarks.demo_speed``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--prompts", type=int, default=6)
    args = parser.parse_args(argv)

    torch.set_num_threads(1)
    verifier = ModelSpec()
    tokenizer = load_tokenizer(verifier)
    task = get_task("text_json")
    prompts = [tuple(render(tokenizer, item)) for item in task.items("eval", args.prompts, seed=0)]
    stop, effort = StopRules(task.max_tokens, stop_ids(tokenizer)), Effort(8, 1)
    jobs.ray_session.start_ray()
    local, actors = LocalPair(PairSpec(max_rows=1)), RayPair(PairSpec(max_rows=1), PairResources(0.5, 0.5))
    model = AutoModelForCausalLM.from_pretrained(model_directory(verifier), dtype=verifier.torch_dtype)
    drafted = pair_arm(local, prompts, stop, effort)
    times = EngineTimes()

    def drafted_and_timed() -> int:
        before = EngineTimes(**vars(local.times()))
        count = drafted()
        for name, value in vars(local.times()).items():
            setattr(times, name, getattr(times, name) + value - getattr(before, name))
        return count

    arms = {
        "transformers": transformers_arm(model, prompts, stop),
        "ar": pair_arm(local, prompts, stop, None),
        "drafted": drafted_and_timed,
        "actors": pair_arm(actors, prompts, stop, effort),
    }
    speeds = measure(arms, args.repeats)
    actors.close()
    print(
        f"{device_name('cpu')}, {verifier.dtype}, batch 1, 1 thread; {args.prompts} text_json prompts, {args.repeats} repeats"
    )
    for name, values in speeds.items():
        print(f"{name:>12}: median {statistics.median(values):6.1f} tokens/s")
    print(f"our AR over transformers.generate:       {ratio(speeds, 'ar', 'transformers')}")
    print(f"one-pass lossless drafting over our AR:  {ratio(speeds, 'drafted', 'ar')}")
    print(f"actor pair over in-process pair:         {ratio(speeds, 'actors', 'drafted')}")
    print(shares(EngineTimes(), times))
    return 0


if __name__ == "__main__":
    sys.exit(main())
