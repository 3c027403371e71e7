"""Synthetic results with a known truth, written by the real writer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from analysis import summarize_generations, write_cell

BLOCK = 7
MARGINS = (0.0, 2.0, 8.0)


@dataclass
class World:
    """What is true of the pair: how passes and margins move speed and quality, and how noisy timing is.

    Args:
        length_gain: extra accepted tokens per round of each doubling of the passes.
        pass_cost: cost of one denoising pass, as a share of one verification.
        run_noise: spread of a cell's speed between runs that the AR reference does not share (log scale).
    """

    length_gain: float = 0.0
    pass_cost: float = 0.0
    run_noise: float = 0.0
    tasks: Sequence[str] = ("json",)
    passes: Sequence[int] = (1, 2, 4)
    margins: Sequence[float] = MARGINS
    prompts: int = 40
    repeats: int = 1
    ar_every: int = 1
    seed: int = 0
    base_length: dict[str, float] = field(default_factory=dict)

    def write(self, results_dir: Path) -> None:
        """Write every cell of this world, an AR cell per task and repeat included."""
        rng = np.random.default_rng(self.seed)
        for task in self.tasks:
            ease = rng.normal(0, 0.5, self.prompts)
            tokens = rng.integers(30, 90, self.prompts)
            right = rng.random(self.prompts) < 0.8
            hurt = rng.random(self.prompts)
            for repeat in range(self.repeats):
                base = (task, repeat, tokens, ease, right, hurt, rng)
                self._cell(results_dir, None, None, *base)
                for passes in self.passes:
                    for margin in self.margins:
                        self._cell(results_dir, passes, margin, *base)

    def _cell(
        self,
        results_dir: Path,
        passes: int | None,
        margin: float | None,
        task: str,
        repeat: int,
        tokens: np.ndarray,
        ease: np.ndarray,
        right: np.ndarray,
        hurt: np.ndarray,
        rng: np.random.Generator,
    ) -> None:
        cell = cell_row(task=task, repeat=repeat, passes=passes, margin=margin, num_prompts=self.prompts)
        run = float(np.exp(rng.normal(0, self.run_noise)))
        rows = []
        for i in range(self.prompts):
            ar_latency = tokens[i] * 0.08 * float(np.exp(rng.normal(0, 0.02)))
            score = float(right[i])
            row = generation_row(cell, i, completion_tokens=int(tokens[i]), latency_s=ar_latency, score=score)
            if passes is not None and margin is not None:
                row |= self._speculative(i, passes, margin, task, int(tokens[i]), ease[i], run, rng)
                row["score"] = float(right[i] and hurt[i] > margin / 12)
            if i % self.ar_every == 0:
                row |= {"ar_completion_tokens": int(tokens[i]), "ar_latency_s": ar_latency,
                        "ar_token_ids": [1] * int(tokens[i]), "ar_text": row["text"], "ar_score": score}  # fmt: skip
            rows.append(row)
        write_cell(results_dir, cell | summarize_generations(rows, None if passes is None else BLOCK), rows)

    def _speculative(
        self, i: int, passes: int, margin: float, task: str, tokens: int, ease: float, run: float, rng: Any
    ) -> dict[str, Any]:
        length = self.base_length.get(task, 2.6) + ease + 0.35 * margin + self.length_gain * np.log2(passes)
        length = float(np.clip(length, 1.05, BLOCK + 1))
        rounds = max(1, round(tokens / length))
        accepted = [int(a) for a in np.clip(rng.poisson(length - 1, rounds), 0, BLOCK)]
        verify = (0.3 + rounds * 0.085) * run
        draft = rounds * 0.085 * self.pass_cost * passes * run
        latency = (verify + draft + 0.002 * rounds) * float(np.exp(rng.normal(0, 0.02)))
        return {
            "num_spec_rounds": rounds, "num_draft_tokens": rounds * BLOCK,
            "num_accepted_draft_tokens": sum(accepted), "accepted_per_round": accepted,
            "required_margins": [[0.0, float("inf")]] * rounds, "draft_forwards": rounds * passes,
            "verifier_forwards": rounds + 1, "latency_s": latency, "ttft_s": 0.1, "draft_time_s": draft,
            "verify_time_s": verify, "text": f"answer {i} at margin {margin:g}" if margin > 2 else f"answer {i}",
        }  # fmt: skip


def cell_row(
    *, task: str, repeat: int, passes: int | None, margin: float | None, num_prompts: int, **changes: Any
) -> dict[str, Any]:
    """A valid cell without metrics: AR where `passes` is None, else quota reveal with the margin rule."""
    knobs: dict[str, Any] = {"decoding": "ar", "lossless": True}
    if passes is not None:
        knobs = {"decoding": "speculative", "effort_block": BLOCK, "effort_passes": passes,
                 "effort_reveal": "quota", "leniency_rule": "margin", "leniency_value": margin,
                 "lossless": margin == 0}  # fmt: skip
    return {
        "experiment": "demo", "experiment_fingerprint": "f0",
        "cell_id": f"{task}-p{passes or 'ar'}-m{margin}-r{repeat}", "status": "ok",
        "created_at": datetime(2025, 12, 1, tzinfo=UTC), "code_version": "0.1.0+test", "task": task,
        "repeat": repeat, "seed": repeat, "temperature": 0.0, "batch_size": 1, "dtype": "bfloat16",
        "device": "cpu", "transport": "local", "verifier": "SmolLM2-135M-Instruct", "drafter": "demo",
        "verifier_fingerprint": "v0", "drafter_fingerprint": "d0", "data_fingerprint": f"data-{task}",
        "num_prompts": num_prompts, "quality_metric": "exact match", **knobs, **changes,
    }  # fmt: skip


def generation_row(cell: dict[str, Any], index: int, **changes: Any) -> dict[str, Any]:
    """A valid generation of `cell` without acceptance counters."""
    return {
        "cell_id": cell["cell_id"], "task": cell["task"], "repeat": cell["repeat"], "prompt_index": index,
        "prompt_id": f"{cell['task']}-{index}", "prompt_text": f"question {index}", "text": f"answer {index}",
        "token_ids": [1, 2, 3], "finish_reason": "stop", "completion_tokens": 3, **changes,
    }  # fmt: skip
