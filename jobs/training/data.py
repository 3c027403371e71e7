"""The training data: sequences from the corpus, and the verifier's features of them, cached on disk."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from cluster.models.verifier import Verifier

_HELD_OUT_SHARE = 0.02


@dataclass(frozen=True)
class TrainingSequence:
    """A prompt and the verifier's answer to it.

    Attributes:
        key: a stable identity of the tokens.
        kind: the task it came from.
        ids: prompt and answer token ids.
        prompt_len: how many of them are the prompt's.
        greedy: the answer is the verifier's greedy one.
    """

    key: str
    kind: str
    ids: tuple[int, ...]
    prompt_len: int
    greedy: bool

    @property
    def held_out(self) -> bool:
        """Whether it is kept out of training: a fixed share, by a hash of the tokens."""
        return int(self.key[:8], 16) < _HELD_OUT_SHARE * 16**8


def load_corpus(directory: Path, max_tokens: int) -> list[TrainingSequence]:
    """All sequences of a corpus directory, cut to ``max_tokens``, without duplicates, in a stable order.

    Raises:
        FileNotFoundError: no part files there.
    """
    files = sorted(directory.glob("*.parquet"))
    if not files:
        raise FileNotFoundError(f"Expected a corpus in {directory}, found no *.parquet; make one with jobs.make_corpus")
    found: dict[str, TrainingSequence] = {}
    for file in files:
        for row in pq.read_table(file).to_pylist():
            ids = tuple(row["prompt_ids"] + row["answer_ids"])[:max_tokens]
            key = hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()[:24]
            if len(ids) >= len(row["prompt_ids"]) + 3:
                found[key] = TrainingSequence(key, row["kind"], ids, len(row["prompt_ids"]), row["temperature"] == 0.0)
    return [found[key] for key in sorted(found)]


def frequent_ids(sequences: Iterable[TrainingSequence], size: int) -> Tensor:
    """The ``size`` token ids that answers use most (then prompts, then the lowest ids), ascending; ``[size]`` int64."""
    answers: Counter[int] = Counter()
    prompts: Counter[int] = Counter()
    for sequence in sequences:
        answers.update(sequence.ids[sequence.prompt_len :])
        prompts.update(sequence.ids[: sequence.prompt_len])
    ranked = [*(t for t, _ in answers.most_common()), *(t for t, _ in prompts.most_common()), *range(size)]
    return torch.tensor(sorted(list(dict.fromkeys(ranked))[:size]))


class FeatureStore:
    """Verifier features of training sequences, one safetensors file each, made when first asked for.

    Writes are atomic, so several processes may fill one directory.
    """

    def __init__(self, directory: Path, verifier: Verifier) -> None:
        self.directory, self.verifier = directory, verifier
        directory.mkdir(parents=True, exist_ok=True)

    def get(self, sequence: TrainingSequence) -> tuple[Tensor, Tensor]:
        """Features ``[S, F]`` and final hidden states ``[S, hidden]``, bfloat16, on the CPU."""
        path = self.directory / f"{sequence.key}.safetensors"
        if not path.exists():
            features, final = self.verifier.encode(torch.tensor(sequence.ids, device=self.verifier.device)[None])
            partial = path.with_suffix(f".{os.getpid()}")
            save_file({"features": _stored(features), "final": _stored(final)}, partial)
            partial.replace(path)
        stored = load_file(path)
        return stored["features"], stored["final"]


def _stored(states: Tensor) -> Tensor:
    """``[1, S, n]`` in any float dtype -> ``[S, n]`` bfloat16 on the CPU."""
    return states[0].to("cpu", torch.bfloat16).contiguous()


def split(sequences: Sequence[TrainingSequence]) -> tuple[list[TrainingSequence], list[TrainingSequence]]:
    """Training and held-out sequences."""
    return [s for s in sequences if not s.held_out], [s for s in sequences if s.held_out]
