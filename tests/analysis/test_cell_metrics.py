"""A cell's metric columns from hand-made generations."""

from typing import Any

import pytest

from analysis import summarize_generations
from analysis.schema import CELLS
from tests.analysis.synthetic import cell_row, generation_row

CELL = cell_row(task="json", repeat=0, passes=1, margin=0.0, num_prompts=3)


def row(index: int, **changes: Any) -> dict[str, Any]:
    return generation_row(CELL, index, **changes)


ROWS = [
    row(0, completion_tokens=10, latency_s=1.0, ttft_s=0.1, score=1.0, ar_completion_tokens=10, ar_latency_s=2.0,
        ar_score=1.0, accepted_per_round=[3, 0, 2], num_draft_tokens=9, verifier_forwards=4, draft_forwards=3,
        draft_time_s=0.2, verify_time_s=0.6, regret_nats=0.0, own_sample_disagreements=0),
    row(1, completion_tokens=30, latency_s=1.0, ttft_s=0.1, score=0.0, accepted_per_round=[3, 3, 3],
        num_draft_tokens=9, verifier_forwards=4, draft_forwards=3, draft_time_s=0.2, verify_time_s=0.6,
        regret_nats=0.4, own_sample_disagreements=2),
    row(2, completion_tokens=0, finish_reason="error", error="NaN logits", score=None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("quality", 0.5),
        ("tokens_per_s", 20.0),
        ("ar_tokens_per_s", 5.0),
        ("speedup", 4.0),
        ("num_ar_prompts", 1),
        ("ttft_ms", 100.0),
        ("tpot_ms", (900 / 9 + 900 / 29) / 2),
        ("time_per_answer_s", 1.0),
        ("output_length_ratio", 1.0),
        ("tokens_per_verifier_forward", 5.0),
        ("draft_forwards_per_token", 6 / 40),
        ("own_sample_disagreement", 0.05),
        ("regret_nats", 0.3),
        ("draft_acceptance_rate", 14 / 18),
        ("other_time_s", 0.4),
        ("completion_tokens", 40),
    ],
)
def test_values(name: str, expected: float) -> None:
    assert summarize_generations(ROWS, 3)[name] == pytest.approx(expected)


def test_every_name_is_a_column() -> None:
    assert set(summarize_generations(ROWS, 3)) <= set(CELLS.names)


def test_what_was_not_measured_is_null() -> None:
    columns = summarize_generations([row(0)], None)
    assert {columns[name] for name in ("quality", "speedup", "tpot_ms", "regret_nats", "draft_time_s")} == {None}
    assert "num_spec_rounds" not in columns


def test_one_token_outputs_have_no_tpot() -> None:
    assert summarize_generations([row(0, completion_tokens=1, latency_s=1.0, ttft_s=0.5)], 3)["tpot_ms"] is None
