"""Make the drafter's training corpus: the verifier's own answers to prompts of several kinds.

    python -m jobs.make_corpus --out corpus/demo --sequences chat=3000 text_json=1500 humaneval=600 key_value=600

A kind is a task with a train split, or ``chat``, whose user turns the verifier writes itself. Answers are greedy or
sampled at temperature 0.7 (chat only, every third). Token ids go to Parquet, one part file per ``--part`` sequences, each
written atomically; a part that exists is not made again, so the command resumes where it was stopped and extends a corpus
when asked for more. Several processes share the work with ``--worker i/n``. One torch thread per process.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tqdm import tqdm

from cluster.decoding import Sampling, StopRules
from cluster.engine import Engine
from cluster.messages import Completion, Request
from cluster.models.loading import ModelSpec, load_causal_lm, load_tokenizer, stop_ids, text_decoder
from cluster.models.verifier import Verifier
from jobs.tasks import Item, Message, get_task, render

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("prompt_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("answer_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("temperature", pa.float64(), nullable=False),
    ]
)
_ANSWER_TOKENS = {"chat": 160}
_USER_TURN_TOKENS = 64
_CHAT_TEMPERATURES = (0.0, 0.0, 0.7)


@dataclass(frozen=True)
class Plan:
    """One part file: sequences ``first .. first + count - 1`` of a kind."""

    kind: str
    first: int
    count: int

    @property
    def file_name(self) -> str:
        return f"{self.kind}-{self.first:06d}-{self.count}.parquet"


class CorpusMaker:
    """Answers prompts with the verifier, a part at a time."""

    def __init__(self, spec: ModelSpec, rows: int, seed: int) -> None:
        self.tokenizer = load_tokenizer(spec)
        self.seed, self.rows = seed, rows
        self.engine = Engine(Verifier(load_causal_lm(spec)), None, max_rows=rows, decode=text_decoder(self.tokenizer))

    def make(self, plan: Plan) -> pa.Table:
        """All sequences of a part that have an answer of at least two tokens."""
        items = self._chat_items(plan) if plan.kind == "chat" else self._task_items(plan)
        stop = get_task(plan.kind).stop
        limit = _ANSWER_TOKENS.get(plan.kind, get_task(plan.kind).max_tokens)
        requests, prompts = [], {}
        for offset, item in enumerate(items):
            temperature = _CHAT_TEMPERATURES[(plan.first + offset) % 3] if plan.kind == "chat" else 0.0
            sampling = Sampling(temperature=temperature, seed=self.seed + plan.first + offset)
            prompts[item.id] = (render(self.tokenizer, item), temperature)
            rules = StopRules(limit, stop_ids(self.tokenizer), stop)
            requests.append(Request(item.id, tuple(prompts[item.id][0]), rules, sampling))
        done = [c for c in self.engine.generate(requests) if c.error is None and len(c.token_ids) > 1]
        return self._table(plan.kind, done, prompts)

    def _table(self, kind: str, done: Sequence[Completion], prompts: dict[str, tuple[list[int], float]]) -> pa.Table:
        rows = [
            {
                "id": c.request_id,
                "kind": kind,
                "prompt_ids": prompts[c.request_id][0],
                "answer_ids": list(c.token_ids),
                "temperature": prompts[c.request_id][1],
            }
            for c in sorted(done, key=lambda c: c.request_id)
        ]
        return pa.Table.from_pylist(rows, schema=SCHEMA)

    def _task_items(self, plan: Plan) -> list[Item]:
        return get_task(plan.kind).items("train", plan.first + plan.count, self.seed)[plan.first :]

    def _chat_items(self, plan: Plan) -> list[Item]:
        """User turns that the chat model writes itself when it is asked to continue after the user's role header."""
        head = self.tokenizer.apply_chat_template([{"role": "user", "content": "\0"}], tokenize=False).split("\0")[0]
        prompt = tuple(self.tokenizer(head, add_special_tokens=False)["input_ids"])
        rules = StopRules(_USER_TURN_TOKENS, stop_ids(self.tokenizer))
        requests = [
            Request(f"chat/{self.seed}/{i:06d}", prompt, rules, Sampling(1.0, top_k=50, seed=(self.seed << 32) + i))
            for i in range(plan.first, plan.first + plan.count)
        ]
        items = []
        for done in self.engine.generate(requests):
            text = self.tokenizer.decode(list(done.token_ids), skip_special_tokens=True).strip()
            if done.finish_reason == "stop" and text:
                items.append(Item(done.request_id, (Message("user", text),), "", ""))
        return sorted(items, key=lambda item: item.id)


def plans(sequences: dict[str, int], part: int) -> list[Plan]:
    """The part files of a corpus, kinds interleaved so that an unfinished corpus is mixed too."""
    firsts = [
        (first / total, kind, first, min(part, total - first))
        for kind, total in sequences.items()
        for first in range(0, total, part)
    ]
    return [Plan(kind, first, count) for _, kind, first, count in sorted(firsts)]


def write_table(table: pa.Table, path: Path) -> None:
    """Write a Parquet file atomically."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    pq.write_table(table, partial)
    partial.replace(path)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory of the part files")
    parser.add_argument("--sequences", nargs="+", required=True, metavar="KIND=N", type=_kind_count)
    parser.add_argument("--part", type=int, default=96, help="sequences per part file")
    parser.add_argument("--rows", type=int, default=48, help="sequences decoded at a time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worker", default="0/1", metavar="I/N", help="make every N-th part, from the I-th")
    parser.add_argument("--verifier", default="demo")
    return parser.parse_args(argv)


def _kind_count(text: str) -> tuple[str, int]:
    kind, _, count = text.partition("=")
    if not count.isdigit():
        raise argparse.ArgumentTypeError(f"Expected KIND=N, got {text!r}")
    try:
        get_task(kind)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return kind, int(count)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``python -m jobs.make_corpus``."""
    args = _parse(argv)
    torch.set_num_threads(1)
    index, _, workers = args.worker.partition("/")
    args.out.mkdir(parents=True, exist_ok=True)
    mine = plans(dict(args.sequences), args.part)[int(index) :: int(workers)]
    todo = [plan for plan in mine if not (args.out / plan.file_name).exists()]
    maker: Any = CorpusMaker(ModelSpec(args.verifier), args.rows, args.seed) if todo else None
    tokens = 0
    bar = tqdm(todo, unit="part", file=sys.stderr)
    for plan in bar:
        table = maker.make(plan)
        write_table(table, args.out / plan.file_name)
        tokens += sum(len(ids) for ids in table["answer_ids"].to_pylist())
        bar.set_postfix(kind=plan.kind, answer_tokens=tokens)
    return 0


if __name__ == "__main__":
    sys.exit(main())
