"""What a request asks of the next-token law: temperature, truncation, seed; and the processors that apply it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cluster.decoding.noise import gumbel


@dataclass(frozen=True)
class Sampling:
    """How one request draws its tokens.

    Attributes:
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_k: keep the k most likely tokens; None keeps all.
        top_p: keep the smallest set of most likely tokens whose probability reaches top_p; None keeps all.
        seed: the request's noise seed (any 64-bit signed integer). The same seed gives the same text.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(f"Expected temperature >= 0, got {self.temperature}; use 0 for greedy decoding")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"Expected top_k >= 1 or None, got {self.top_k}; leave it out to keep all tokens")
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"Expected 0 < top_p <= 1 or None, got {self.top_p}; leave it out to keep all tokens")
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"Expected a 64-bit signed seed, got {self.seed}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


GREEDY = Sampling()


def process_logits(logits: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Scores whose softmax is each row's processed next-token law.

    Args:
        logits: ``[B, K, V]``, any float dtype.
        samplings: one per row.

    Returns:
        ``[B, K, V]`` float32 scores: logits / temperature (temperature 1 for greedy rows), ``-inf`` outside top-k/top-p.
        They are not normalised: every rule here compares differences of scores, in which the normaliser cancels.
        May share memory with ``logits`` when nothing had to change.
    """
    scores = logits.float()
    if any(not s.greedy and s.temperature != 1.0 for s in samplings):
        temperature = torch.tensor([1.0 if s.greedy else s.temperature for s in samplings], device=scores.device)
        scores = scores / temperature[:, None, None]
    truncated = [b for b, s in enumerate(samplings) if s.top_k is not None or s.top_p is not None]
    if truncated:
        scores = scores.clone() if scores.data_ptr() == logits.data_ptr() else scores
        for b in truncated:
            scores[b] = _truncate(scores[b], samplings[b])
    return scores


def _truncate(scores: Tensor, sampling: Sampling) -> Tensor:
    """Set scores outside top-k, then outside top-p of what is left, to ``-inf``; ``[K, V]``."""
    if sampling.top_k is not None and sampling.top_k < scores.shape[-1]:
        smallest_kept = scores.topk(sampling.top_k, dim=-1).values[..., -1:]  # [K, 1]
        scores = scores.masked_fill(scores < smallest_kept, float("-inf"))
    if sampling.top_p is not None and sampling.top_p < 1.0:
        ordered, index = scores.sort(dim=-1, descending=True, stable=True)  # [K, V]
        mass = ordered.softmax(dim=-1)
        outside = mass.cumsum(dim=-1) - mass >= sampling.top_p  # the token that crosses top_p stays
        scores = scores.masked_fill(torch.zeros_like(outside).scatter(-1, index, outside), float("-inf"))
    return scores


def add_noise(scores: Tensor, samplings: Sequence[Sampling], positions: Tensor, token_ids: Tensor) -> Tensor:
    """Perturb processed scores with each sampled row's own noise; greedy rows are left as they are.

    Args:
        scores: ``[B, K, V]`` float32.
        samplings: one per row.
        positions: ``[B, K]`` int64, the absolute position of the token each slot decides.
        token_ids: ``[V]`` int64, the vocabulary id of each column.

    Returns:
        ``[B, K, V]`` float32; the argmax over V is the row's own sample. The input itself when all rows are greedy.
    """
    sampled = [b for b, s in enumerate(samplings) if not s.greedy]
    if not sampled:
        return scores
    seeds = torch.tensor([samplings[b].seed for b in sampled], dtype=torch.int64, device=scores.device)
    if len(sampled) == len(samplings):
        return gumbel(seeds, positions, token_ids).add_(scores)
    rows = torch.tensor(sampled, device=scores.device)
    noise = gumbel(seeds, positions[rows], token_ids)
    return scores.index_add(0, rows, noise)
