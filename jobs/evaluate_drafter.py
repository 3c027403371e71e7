"""Measure a drafter on held-out prompts: real greedy, lossless decoding at 1, 2 and 4 passes.

    python -m jobs.evaluate_drafter --drafter runs/demo/drafter --items 40

Prints, per task and number of passes, the mean acceptance length (token-weighted, bonus counted) and the acceptance of each
position, and writes them as JSON with ``--out``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from analysis.round_metrics import acceptance_columns
from cluster.decoding import Effort, StopRules
from cluster.messages import Request
from cluster.models.loading import ModelSpec, load_tokenizer, stop_ids
from cluster.pair import LocalPair, PairSpec
from jobs.tasks import get_task, render


def evaluate(pair: LocalPair, tokenizer: Any, task_name: str, items: int, passes: int, block: int) -> dict[str, Any]:
    """Acceptance of one task at one number of passes, from greedy lossless decoding."""
    task = get_task(task_name)
    stop = StopRules(task.max_tokens, stop_ids(tokenizer), task.stop)
    requests = [
        Request(item.id, tuple(render(tokenizer, item)), stop, effort=Effort(block, passes))
        for item in task.items("eval", items, seed=0)
    ]
    done = pair.generate(requests)
    proposed = sum(d.stats.num_draft_tokens for d in done)
    metrics = acceptance_columns([d.stats.accepted_per_round for d in done], block, proposed)
    return {"task": task_name, "passes": passes, "items": items, "rounds": metrics["num_spec_rounds"]} | {
        key: metrics[key]
        for key in ("mean_acceptance_length_token_weighted", "draft_acceptance_rate", "per_position_acceptance")
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``python -m jobs.evaluate_drafter``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafter", default="demo")
    parser.add_argument("--verifier", default="demo")
    parser.add_argument("--tasks", nargs="+", default=["text_json", "key_value", "humaneval", "chat"])
    parser.add_argument("--passes", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--items", type=int, default=40)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    verifier = ModelSpec(args.verifier, dtype=args.dtype)
    pair = LocalPair(PairSpec(verifier, ModelSpec(args.drafter, dtype=args.dtype)))
    tokenizer = load_tokenizer(verifier)
    found = []
    for task, passes in tqdm([(t, p) for t in args.tasks for p in args.passes], file=sys.stderr):
        found.append(evaluate(pair, tokenizer, task, args.items, passes, pair.max_block))
        length = found[-1]["mean_acceptance_length_token_weighted"]
        positions = " ".join(f"{share:.2f}" for share in found[-1]["per_position_acceptance"])
        tqdm.write(f"{task:10} passes {passes}: mean acceptance length {length:.2f}; per position {positions}")
    if args.out:
        partial = args.out.with_suffix(".partial")
        partial.write_text(json.dumps(found, indent=1) + "\n")
        partial.replace(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
