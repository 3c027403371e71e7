"""Hand-made models: a verifier whose law of the next token is looked up by the whole prefix, and drafters beside it.

Both keep their own per-row memory in place of a key-value cache, so a wrong position, row or move in the engine
changes the text. The drafters learn about the context only through the engine's journal, as real ones do.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor

from cluster.decoding import LOSSLESS, Effort, Leniency, Sampling, StopRules, denoise
from cluster.decoding.sampling import add_noise, process_logits
from cluster.engine import Engine
from cluster.messages import Completion, DraftCall, DraftReply, Request, RowMove
from cluster.models.verifier import Verifier

_PRIME = 9_999_991  # states stay exact in float32 features
_START = 1
CHI_SQUARE_LIMIT = {4: 23.513, 7: 29.878, 63: 113.505, 255: 347.654}
"""Degrees of freedom -> the value that a true hypothesis exceeds once in 10,000 experiments."""


def chi_square(counts: Sequence[int] | Tensor, law: Sequence[float] | Tensor) -> float:
    """Pearson's statistic of ``counts`` against the probabilities ``law``."""
    seen = torch.as_tensor(counts, dtype=torch.float64).flatten()
    expected = torch.as_tensor(law, dtype=torch.float64).flatten() * seen.sum()
    return float(((seen - expected) ** 2 / expected).sum())


@dataclass(frozen=True)
class PrefixTable:
    """Logits of the next token for every prefix: the prefix is hashed, token by token, into a row of a table.

    Args:
        vocab: tokens.
        seed: of the table.
        sharpness: standard deviation of the logits.
        poison: a token after which all logits are NaN, whatever follows.
    """

    vocab: int = 6
    seed: int = 0
    sharpness: float = 2.0
    poison: int | None = None
    _table: list[Tensor] = field(default_factory=list, repr=False, compare=False)

    def step(self, state: int, token: int) -> int:
        """The state after one more token."""
        if state == 0 or token == self.poison:
            return 0  # the state of a poisoned prefix, for good
        return (state * 7919 + token + 1) % (_PRIME - 1) + 1

    def prefix(self, tokens: Sequence[int]) -> int:
        """The state after ``tokens``."""
        state = _START
        for token in tokens:
            state = self.step(state, token)
        return state

    def logits(self, state: int) -> Tensor:
        """``[V]`` float32."""
        if not self._table:
            rng = torch.Generator().manual_seed(self.seed)
            self._table.append(torch.randn(509, self.vocab, generator=rng) * self.sharpness)
        return torch.full((self.vocab,), float("nan")) if state == 0 else self._table[0][state % 509]


class RowMemory:
    """What a cache would hold: a state per row and position; garbage stays until it is overwritten."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[int, int]] = {}

    def move_row(self, source: int, target: int) -> None:
        self.rows[target] = dict(self.rows[source])

    def clear_row(self, row: int) -> None:
        self.rows[row] = {}


class TableVerifier:
    """Stands in for :class:`cluster.models.verifier.Verifier`; its feature of a position is the state after it."""

    def __init__(self, table: PrefixTable, context_tokens: int = 64) -> None:
        self.table, self.context_tokens, self.vocab_size = table, context_tokens, table.vocab
        self.device, self.cache, self.forwards = torch.device("cpu"), RowMemory(), 0

    def forward(
        self, token_ids: Tensor, first_positions: Tensor, first_row: int = 0, logits_to_keep: int = 0
    ) -> tuple[Tensor, Tensor]:
        self.forwards += 1
        states = []
        for b, (tokens, first) in enumerate(zip(token_ids.tolist(), first_positions.tolist(), strict=True)):
            memory = self.cache.rows.setdefault(first_row + b, {})
            for position, token in enumerate(tokens, start=first):
                memory[position] = self.table.step(memory[position - 1] if position else _START, token)
            states.append([memory[first + t] for t in range(len(tokens))])
        logits = torch.stack([torch.stack([self.table.logits(s) for s in row]) for row in states])
        features = torch.tensor(states, dtype=torch.float32)[..., None]
        return logits[:, -logits_to_keep:] if logits_to_keep else logits, features


Skill = Literal["oracle", "wrong", "random", "chain"]


class TableDrafter:
    """A :class:`cluster.messages.DraftPort` over the same table.

    Args:
        table: the verifier's.
        skill: ``oracle`` drafts what the verifier will say; ``wrong`` never does; ``random`` draws from another table;
            ``chain`` knows a slot's law only once every slot before it is revealed, so passes and reveal order matter.
    """

    def __init__(
        self, table: PrefixTable, skill: Skill = "chain", max_block: int = 8, context_tokens: int = 64
    ) -> None:
        self.table, self.skill = table, skill
        self.max_block, self.context_tokens = max_block, context_tokens
        self.memory = RowMemory()
        self.calls: list[DraftCall] = []
        self._other = PrefixTable(table.vocab, seed=table.seed + 1)

    def draft(self, call: DraftCall) -> DraftReply:
        self.calls.append(call)
        for entry in call.journal:
            if isinstance(entry, RowMove):
                self.memory.move_row(entry.source, entry.target)
                continue
            for b, (states, first) in enumerate(
                zip(entry.features[..., 0].tolist(), entry.first_positions, strict=True)
            ):
                row = self.memory.rows.setdefault(entry.first_row + b, {})
                row.update({first + t: int(s) for t, s in enumerate(states)})
        states = [
            self.table.step(self.memory.rows[b][position - 1], anchor) if length else _START
            for b, (anchor, position, length) in enumerate(
                zip(call.anchors, call.anchor_positions, call.lengths, strict=True)
            )
        ]
        mask = self.table.vocab
        block = denoise(
            lambda ids: self._laws(states, ids, call, mask),
            torch.tensor(call.lengths),
            torch.tensor(call.anchor_positions),
            call.samplings,
            call.efforts,
            torch.arange(self.table.vocab),
            mask,
        )
        tokens = tuple(tuple(row[:n]) for row, n in zip(block.tokens.tolist(), call.lengths, strict=True))
        return DraftReply(tokens, tuple(block.forwards.tolist()), 0.0)

    def _laws(self, states: list[int], ids: Tensor, call: DraftCall, mask: int) -> Tensor:
        out = torch.zeros(*ids.shape, self.table.vocab)
        for b, row in enumerate(ids.tolist()):
            state, known = states[b], True
            for k in range(call.lengths[b]):
                if self.skill in ("oracle", "wrong"):
                    own = self._own(state, call, b, k)
                    choice = own if self.skill == "oracle" else (own + 1) % self.table.vocab
                    out[b, k] = torch.full((self.table.vocab,), -1e4)
                    out[b, k, choice] = 0.0
                    state = self.table.step(state, own)
                else:
                    table = self.table if known and self.skill == "chain" else self._other
                    out[b, k] = table.logits(state or _START)
                    known &= row[k] != mask
                    state = self.table.step(state or _START, row[k])
        return out

    def _own(self, state: int, call: DraftCall, row: int, slot: int) -> int:
        """The verifier's own sample in ``state``."""
        scores = process_logits(self.table.logits(state)[None, None], [call.samplings[row]])
        position = torch.tensor([[call.anchor_positions[row] + 1 + slot]])
        perturbed = add_noise(scores, [call.samplings[row]], position, torch.arange(self.table.vocab))
        return int(perturbed.argmax())


def table_engine(
    table: PrefixTable,
    skill: Skill | None = "chain",
    max_rows: int = 4,
    context: int = 64,
    drafter_context: int | None = None,
) -> Engine:
    """An engine over hand-made models; ``skill`` None leaves the drafter out."""
    drafter = None if skill is None else TableDrafter(table, skill, context_tokens=drafter_context or context)
    return Engine(cast(Verifier, TableVerifier(table, context)), drafter, max_rows, decode=spell)


def spell(ids: list[int]) -> str:
    """Tokens as letters."""
    return "".join(chr(ord("a") + i) for i in ids)


def request(
    prompt: Sequence[int] = (1, 2),
    max_tokens: int = 12,
    effort: Effort | None = None,
    sampling: Sampling | None = None,
    stop: StopRules | None = None,
    name: str = "r",
    leniency: Leniency = LOSSLESS,
) -> Request:
    """A request with defaults for tests."""
    stop = stop or StopRules(max_tokens)
    return Request(name, tuple(prompt), stop, sampling or Sampling(), effort, leniency)


def run_one(engine: Engine, one: Request) -> Completion:
    """The completion of a single request."""
    (completion,) = engine.generate([one])
    return completion


def plain(one: Request) -> Request:
    """The same request without drafts."""
    return Request(one.id, one.prompt, one.stop, one.sampling, None, one.leniency)


def solo_tokens(table: PrefixTable, one: Request, context: int = 64) -> tuple[int, ...]:
    """What plain decoding of the request alone gives: the reference of every lossless test."""
    return run_one(table_engine(table, skill=None, max_rows=1, context=context), plain(one)).token_ids


def subprocess_environment() -> dict[str, str]:
    """The environment of a child process that imports this checkout."""
    root = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
