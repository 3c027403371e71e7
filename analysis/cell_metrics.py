"""The metric columns of a cell, computed from its generations: one place for every definition.

Sums run over prompts that did not fail. Times are per request; at batch sizes above 1 requests overlap, so
the caller overrides `tokens_per_s`, `draft_time_s`, `verify_time_s` and `other_time_s` by wall-clock values.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from analysis.round_metrics import acceptance_columns

Row = Mapping[str, Any]


def summarize_generations(generations: Sequence[Row], block: int | None) -> dict[str, Any]:
    """Metric columns of `analysis.schema.CELLS` for one cell; what was not measured is None.

    Args:
        generations: rows as in `analysis.schema.GENERATIONS`.
        block: drafted tokens per full block, K; None for AR decoding.

    Raises:
        ResultsError: an accepted count is outside 0 ... block.
    """
    rows = [row for row in generations if row["finish_reason"] != "error"]
    paired = [row for row in rows if row.get("ar_latency_s") is not None]
    speed = _ratio(rows, "completion_tokens", "latency_s")
    ar_speed = _ratio(paired, "ar_completion_tokens", "ar_latency_s")
    return {
        "num_ar_prompts": len(paired),
        "quality": _mean(rows, "score"),
        "ar_quality": _mean(paired, "ar_score"),
        "tokens_per_s": speed,
        "ar_tokens_per_s": ar_speed,
        "speedup": speed / ar_speed if speed is not None and ar_speed else None,
        "tpot_ms": _mean_of(rows, _tpot_ms),
        "ttft_ms": _scaled(_mean(rows, "ttft_s"), 1000),
        "time_per_answer_s": _mean(rows, "latency_s"),
        "ar_time_per_answer_s": _mean(paired, "ar_latency_s"),
        "output_length_ratio": _ratio(paired, "completion_tokens", "ar_completion_tokens"),
        "tokens_per_verifier_forward": _ratio(rows, "completion_tokens", "verifier_forwards"),
        "draft_forwards_per_token": _ratio(rows, "draft_forwards", "completion_tokens"),
        "own_sample_disagreement": _ratio(rows, "own_sample_disagreements", "completion_tokens"),
        "regret_nats": _per_token(rows, "regret_nats"),
        "nll_nats": _per_token(rows, "nll_nats"),
        "completion_tokens": sum(row["completion_tokens"] for row in rows),
        **_times(rows),
        **(_acceptance(rows, block) if block is not None else {}),
    }


def _acceptance(rows: Sequence[Row], block: int) -> dict[str, Any]:
    requests = [r["accepted_per_round"] for r in rows if r.get("accepted_per_round") is not None]
    proposed = [r["num_draft_tokens"] for r in rows if r.get("num_draft_tokens") is not None]
    return acceptance_columns(requests, block, sum(proposed) if len(proposed) == len(requests) else None)


def _times(rows: Sequence[Row]) -> dict[str, float | None]:
    draft, verify, total = (_total(rows, name) for name in ("draft_time_s", "verify_time_s", "latency_s"))
    other = None if total is None or verify is None else max(0.0, total - verify - (draft or 0.0))
    return {"draft_time_s": draft, "verify_time_s": verify, "other_time_s": other}


def _tpot_ms(row: Row) -> float | None:
    if row.get("ttft_s") is None or row.get("latency_s") is None or row["completion_tokens"] < 2:
        return None
    return float(1000 * (row["latency_s"] - row["ttft_s"]) / (row["completion_tokens"] - 1))


def _mean(rows: Sequence[Row], name: str) -> float | None:
    return _mean_of(rows, lambda row: row.get(name))


def _mean_of(rows: Sequence[Row], value: Callable[[Row], float | None]) -> float | None:
    values = [number for row in rows if (number := value(row)) is not None]
    return sum(values) / len(values) if values else None


def _total(rows: Sequence[Row], name: str) -> float | None:
    values = [row[name] for row in rows if row.get(name) is not None]
    return float(sum(values)) if values else None


def _ratio(rows: Sequence[Row], over: str, under: str) -> float | None:
    """Ratio of sums over the rows that have both values."""
    both = [row for row in rows if row.get(over) is not None and row.get(under) is not None]
    total = sum(row[under] for row in both)
    return float(sum(row[over] for row in both) / total) if total else None


def _per_token(rows: Sequence[Row], name: str) -> float | None:
    """Mean over tokens of a per-token mean that is stored per prompt."""
    known = [row for row in rows if row.get(name) is not None]
    tokens = sum(row["completion_tokens"] for row in known)
    return float(sum(row[name] * row["completion_tokens"] for row in known) / tokens) if tokens else None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
