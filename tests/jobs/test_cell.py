"""One cell: what is decoded, in which order, and the rows that come of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import analysis
from cluster.decoding import RequestStats
from cluster.messages import Completion, EngineTimes, Request
from jobs.cell import Cell, Identity, cell_row, run_cell
from jobs.experiment import Experiment

IDENTITY = Identity("small", "f" * 16, "c0de", "veri", "draf", "CPU")


class SpellingTokenizer:
    """A token per character; the end of sequence is id 0."""

    chat_template = "x"
    name_or_path = "spelling"
    eos_token_id = 0

    def apply_chat_template(self, turns: list[dict[str, str]], **_: Any) -> str:
        return "".join(t["content"] for t in turns)

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(c) for c in text]}

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        assert skip_special_tokens
        return "".join(chr(i) for i in ids if i)


class FakePair:
    """Answers every prompt with "ab" and an end of sequence; remembers what it was asked."""

    def __init__(self, fail: int | None = None) -> None:
        self.asked: list[list[Request]] = []
        self.fail = fail

    def generate(self, requests: Iterable[Request]) -> list[Completion]:
        self.asked.append(list(requests))
        return [self._answer(r) for r in self.asked[-1]]

    def _answer(self, request: Request) -> Completion:
        stats = RequestStats(verifier_forwards=2, ttft_s=0.1, latency_s=0.4, nll_nats=1.5)
        if request.effort is not None:
            stats.accepted_per_round, stats.proposed_per_round = [1], [2]
            stats.required_margins, stats.draft_forwards = [[0.0, 0.5]], request.effort.passes
            stats.own_sample_disagreements = 1
        if request.effort is not None and self.fail == int(request.id.partition("#")[2]):
            return Completion(request.id, (), "error", stats, "the verifier's logits are not finite")
        return Completion(request.id, (97, 98, 0), "stop", stats)

    def times(self) -> EngineTimes:
        return EngineTimes()

    def close(self) -> None:
        pass


def experiment(**changes: Any) -> Experiment:
    raw: dict[str, Any] = {
        "name": "small",
        "tasks": [{"name": "chat", "items": 4, "max_tokens": 8}],
        "effort": [{"block": [2], "passes": [1]}],
        "leniency": [{"value": [1]}],
        "ar_reference_items": 2,
    }
    return Experiment.model_validate(raw | changes)


def run(pair: FakePair, point: int = 1, **changes: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    wanted = experiment(**changes)
    cell = Cell.of(wanted.cells()[point], wanted, IDENTITY)
    return run_cell(cell, pair, SpellingTokenizer(), wanted, IDENTITY)


class TestRunCell:
    def test_reference_prompts_are_evenly_spread_and_alternate_with_the_drafted_ones(self) -> None:
        pair = FakePair()
        _, rows = run(pair)
        kinds = ["ar" if batch[0].effort is None else "drafted" for batch in pair.asked]
        assert kinds == ["drafted", "ar", "drafted", "ar", "drafted", "drafted"]
        assert [r["prompt_index"] for r in rows if r.get("ar_latency_s")] == [0, 2]

    def test_the_rows_fit_the_schema_and_the_sums_are_right(self, tmp_path: Path) -> None:
        row, generations = run(FakePair())
        analysis.write_cell(tmp_path, row, generations)
        stored = analysis.load_cells(tmp_path).iloc[0]
        assert stored["draft_acceptance_rate"] == 0.5
        assert stored["mean_acceptance_length_token_weighted"] == 2.0
        assert stored["own_sample_disagreement"] == 1 / 3
        assert stored["nll_nats"] == 0.5
        assert stored["speedup"] == 1.0
        assert analysis.load_generations(tmp_path)["text"].tolist() == ["ab"] * 4

    def test_an_open_task_is_judged_by_agreement_with_the_verifier(self) -> None:
        row, _ = run(FakePair())
        assert row["quality_metric"] == "agreement"
        assert row["quality"] == 1 - 1 / 3

    def test_an_ar_cell_has_no_acceptance_counters(self, tmp_path: Path) -> None:
        row, generations = run(FakePair(), point=0)
        analysis.write_cell(tmp_path, row, generations)
        stored = analysis.load_cells(tmp_path).iloc[0]
        assert stored["decoding"] == "ar"
        assert stored[["num_spec_rounds", "draft_acceptance_rate", "effort_passes"]].isna().all()

    def test_a_failed_prompt_is_a_row_with_its_reason_and_counts_in_no_mean(self, tmp_path: Path) -> None:
        row, generations = run(FakePair(fail=3))
        analysis.write_cell(tmp_path, row, generations)
        assert [g["finish_reason"] for g in generations] == ["stop", "stop", "stop", "error"]
        assert row["completion_tokens"] == 9

    def test_a_prompts_noise_depends_on_prompt_and_repeat_not_on_the_operating_point(self) -> None:
        plain, drafted = FakePair(), FakePair()
        run(plain, point=0)
        run(drafted, point=1)
        seeds = [{r.id: r.sampling.seed for batch in p.asked for r in batch} for p in (plain, drafted)]
        assert seeds[0] == seeds[1]
        assert len(set(seeds[0].values())) == 4

    def test_batches_hold_batch_size_prompts(self) -> None:
        pair = FakePair()
        run(pair, batch_size=3)
        assert sorted(len(batch) for batch in pair.asked if batch[0].effort) == [1, 3]


class TestFailedCell:
    def test_its_row_carries_the_reason_and_fits_the_schema(self, tmp_path: Path) -> None:
        wanted = experiment()
        cell = Cell.of(wanted.cells()[1], wanted, replace(IDENTITY))
        analysis.write_cell(tmp_path, cell_row(cell, wanted, IDENTITY, error="ActorDiedError: gone"), [])
        stored = analysis.load_cells(tmp_path).iloc[0]
        assert (stored["status"], stored["error"]) == ("failed", "ActorDiedError: gone")
        assert analysis.finished_cells(tmp_path) == set()
