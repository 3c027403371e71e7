"""One cell of an experiment: decode a task's prompts at one operating point, with an AR reference in between."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analysis import summarize_generations
from cluster.decoding import LOSSLESS, Effort, Leniency, Sampling, StopRules
from cluster.messages import Completion, Request
from cluster.models.loading import stop_ids
from cluster.pair import Pair
from jobs.experiment import Experiment, digest
from jobs.tasks import Item, Task, fingerprint, get_task, render, render_text

Row = dict[str, Any]


@dataclass(frozen=True)
class Identity:
    """What, besides a cell's configuration, decides its results."""

    experiment: str
    experiment_fingerprint: str
    code_version: str
    verifier_fingerprint: str
    drafter_fingerprint: str
    device: str


@dataclass(frozen=True)
class Cell:
    """A cell: its configuration, made concrete."""

    task: Task
    items: tuple[Item, ...]
    effort: Effort | None
    leniency: Leniency
    temperature: float
    repeat: int
    cell_id: str

    @classmethod
    def of(cls, config: dict[str, Any], experiment: Experiment, identity: Identity) -> Cell:
        """Make a cell of the plain data of :meth:`Experiment.cells`."""
        wanted = config["task"]
        task = get_task(wanted["name"])
        if wanted["max_tokens"] is not None:
            task = dataclasses.replace(task, max_tokens=wanted["max_tokens"])
        items = tuple(task.items("eval", wanted["items"], experiment.seed))
        conditions = experiment.model_dump(mode="json", exclude={"name", "tasks", "effort", "leniency", "repeats"})
        known = dataclasses.asdict(identity) | {"experiment": None, "experiment_fingerprint": None}
        cell_id = digest([config, conditions, known, fingerprint(items)])
        return cls(
            task=task,
            items=items,
            effort=Effort(**config["effort"]) if config["effort"] else None,
            leniency=Leniency(**config["leniency"]) if config["leniency"] else LOSSLESS,
            temperature=config["temperature"],
            repeat=config["repeat"],
            cell_id=cell_id,
        )


def run_cell(
    cell: Cell, pair: Pair, tokenizer: Any, experiment: Experiment, identity: Identity
) -> tuple[Row, list[Row]]:
    """Decode a cell's prompts; its row and its generations' rows, as :func:`analysis.write_cell` takes them.

    Prompts go in batches of ``batch_size``. A batch with reference prompts is decoded at the operating point and plainly,
    the order alternating from one such batch to the next.
    """
    started = time.perf_counter()
    runner = _Runner(cell, pair, tokenizer, experiment)
    size = experiment.batch_size
    reference = _spread(len(cell.items), experiment.ar_reference_items)
    rows: list[Row] = []
    spent_s = plain_s = 0.0
    references = 0
    for first in range(0, len(cell.items), size):
        batch = range(first, min(first + size, len(cell.items)))
        wants_reference = any(i in reference for i in batch)
        plain: list[Completion] = []
        for turn in ("plain", "cell") if references % 2 else ("cell", "plain"):
            if turn == "cell":
                done, seconds = runner.decode(batch, cell.effort, cell.leniency)
                spent_s += seconds
            elif wants_reference:
                plain, seconds = runner.decode(batch, None, LOSSLESS)
                plain_s += seconds
        references += wants_reference
        new = [runner.row(i, c) for i, c in zip(batch, done, strict=True)]
        for row, completion in zip(new, plain, strict=False):
            row.update(runner.reference_columns(row["prompt_index"], completion))
        rows += new
    metrics = summarize_generations(rows, cell.effort.block if cell.effort else None)
    if size > 1:
        metrics |= _overlapping(metrics, rows, spent_s, plain_s)
    base = cell_row(cell, experiment, identity)
    return base | metrics | {"wall_time_s": time.perf_counter() - started}, rows


def _overlapping(metrics: Row, rows: Sequence[Row], spent_s: float, plain_s: float) -> Row:
    """The speeds of a cell whose requests ran side by side: tokens over the batches' wall time, not over latencies."""
    plain_tokens = sum(row.get("ar_completion_tokens") or 0 for row in rows)
    speed, plain_speed = metrics["completion_tokens"] / spent_s, plain_tokens / plain_s
    busy_s = (metrics["draft_time_s"] or 0.0) + (metrics["verify_time_s"] or 0.0)
    return {
        "tokens_per_s": speed,
        "ar_tokens_per_s": plain_speed,
        "speedup": speed / plain_speed,
        "other_time_s": max(0.0, spent_s - busy_s),
    }


def cell_row(cell: Cell, experiment: Experiment, identity: Identity, error: str | None = None) -> Row:
    """The columns of a cell that are known without running it; with ``error`` it is the whole row of a failed one."""
    effort = cell.effort
    return {
        "experiment": identity.experiment,
        "experiment_fingerprint": identity.experiment_fingerprint,
        "cell_id": cell.cell_id,
        "status": "ok" if error is None else "failed",
        "error": error,
        "created_at": datetime.now(UTC),
        "code_version": identity.code_version,
        "task": cell.task.name,
        "repeat": cell.repeat,
        "seed": experiment.seed + cell.repeat,
        "decoding": "speculative" if effort else "ar",
        "effort_block": effort.block if effort else None,
        "effort_passes": effort.passes if effort else None,
        "effort_reveal": effort.reveal if effort else None,
        "effort_value": effort.value if effort else None,
        "leniency_rule": cell.leniency.rule if effort else None,
        "leniency_value": cell.leniency.value if effort else None,
        "lossless": effort is None or cell.leniency.lossless,
        "temperature": cell.temperature,
        "top_k": experiment.top_k,
        "top_p": experiment.top_p,
        "max_tokens": cell.task.max_tokens,
        "batch_size": experiment.batch_size,
        "dtype": experiment.verifier.dtype,
        "device": identity.device,
        "threads": experiment.resources.verify_threads if experiment.verifier.device == "cpu" else None,
        "transport": experiment.resources.transport,
        "verifier": experiment.verifier.name,
        "drafter": experiment.drafter.name,
        "verifier_fingerprint": identity.verifier_fingerprint,
        "drafter_fingerprint": identity.drafter_fingerprint,
        "data_fingerprint": fingerprint(cell.items),
        "num_prompts": len(cell.items),
        "quality_metric": cell.task.quality_metric,
    }


def _spread(count: int, wanted: int) -> set[int]:
    """``wanted`` indices out of ``count``, evenly spaced."""
    wanted = min(count, wanted)
    return {i * count // wanted for i in range(wanted)}


class _Runner:
    """Decodes a cell's prompts and turns completions into rows."""

    def __init__(self, cell: Cell, pair: Pair, tokenizer: Any, experiment: Experiment) -> None:
        self.cell, self.pair, self.tokenizer, self.experiment = cell, pair, tokenizer, experiment
        self.stop = StopRules(cell.task.max_tokens, stop_ids(tokenizer), cell.task.stop)
        self.prompts = [tuple(render(tokenizer, item)) for item in cell.items]

    def decode(self, batch: Sequence[int], effort: Effort | None, leniency: Leniency) -> tuple[list[Completion], float]:
        """Completions of a batch, and the seconds it took; a prompt's noise seed depends on prompt and repeat only."""
        experiment, cell = self.experiment, self.cell
        requests = [
            Request(
                f"{cell.items[i].id}#{i}",
                self.prompts[i],
                self.stop,
                Sampling(cell.temperature, experiment.top_k, experiment.top_p, self._seed(i)),
                effort,
                leniency,
            )
            for i in batch
        ]
        started = time.perf_counter()
        return self.pair.generate(requests), time.perf_counter() - started

    def _seed(self, index: int) -> int:
        return (self.experiment.seed + self.cell.repeat) * 1_000_003 + index

    def row(self, index: int, done: Completion) -> Row:
        """A generation's row."""
        item, stats, count = self.cell.items[index], done.stats, len(done.token_ids)
        drafted = self.cell.effort is not None
        return {
            "cell_id": self.cell.cell_id,
            "task": self.cell.task.name,
            "repeat": self.cell.repeat,
            "prompt_index": index,
            "prompt_id": item.id,
            "prompt_text": render_text(self.tokenizer, item),
            "text": self.text(done),
            "token_ids": list(done.token_ids),
            "finish_reason": done.finish_reason,
            "error": done.error,
            "score": self.score(item, done),
            "completion_tokens": count,
            "num_spec_rounds": stats.num_spec_rounds if drafted else None,
            "num_draft_tokens": stats.num_draft_tokens if drafted else None,
            "num_accepted_draft_tokens": stats.num_accepted_draft_tokens if drafted else None,
            "accepted_per_round": stats.accepted_per_round if drafted else None,
            "drafted_per_round": stats.proposed_per_round if drafted else None,
            "acceptance_histogram": stats.acceptance_histogram(self.cell.effort.block) if self.cell.effort else None,
            "required_margins": stats.required_margins if drafted else None,
            "draft_forwards": stats.draft_forwards if drafted else None,
            "verifier_forwards": stats.verifier_forwards,
            "own_sample_disagreements": stats.own_sample_disagreements,
            "regret_nats": stats.regret_nats / count if count else None,
            "nll_nats": stats.nll_nats / count if count else None,
            "ttft_s": stats.ttft_s,
            "latency_s": stats.latency_s,
            "draft_time_s": stats.draft_time_s if drafted else None,
            "verify_time_s": stats.verify_time_s + stats.prefill_time_s,
        }

    def reference_columns(self, index: int, done: Completion) -> Row:
        """The columns of the interleaved AR reference."""
        return {
            "ar_completion_tokens": len(done.token_ids),
            "ar_latency_s": done.stats.latency_s,
            "ar_token_ids": list(done.token_ids),
            "ar_text": self.text(done),
            "ar_score": self.score(self.cell.items[index], done),
        }

    def text(self, done: Completion) -> str:
        """The delivered text: special tokens and the stop string left out."""
        return self.stop.trim(self.tokenizer.decode(list(done.token_ids), skip_special_tokens=True))

    def score(self, item: Item, done: Completion) -> float | None:
        """The task's score; for open tasks the share of tokens that are the verifier's own."""
        if done.error is not None:
            return None
        scored = self.cell.task.score(item, self.text(done))
        if scored is None and done.token_ids:
            return 1.0 - done.stats.own_sample_disagreements / len(done.token_ids)
        return scored


def code_version(root: Path) -> str:
    """A hash of the sources that decide what a cell measures (12 hex digits)."""
    files = sorted([*(root / "cluster").rglob("*.py"), *(root / "jobs" / "tasks").rglob("*.py"), root / "jobs/cell.py"])
    return digest([[str(f.relative_to(root)), f.read_text()] for f in files])[:12]
