"""The pair in one process: a verifier, a drafter and the engine between them. No Ray here.

:class:`cluster.actors.RayPair` offers the same methods with the two models in actors of their own; both give the same
tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from cluster.engine import Engine
from cluster.messages import Completion, EngineTimes, Request
from cluster.models.demo import DRAFTER_DIR
from cluster.models.dflash import DFlashConfig, load_dflash, read_config
from cluster.models.drafter import BlockDrafter
from cluster.models.loading import (
    DEMO,
    ModelError,
    ModelSpec,
    load_causal_lm,
    load_embeddings,
    load_tokenizer,
    model_directory,
    text_decoder,
)
from cluster.models.verifier import Verifier


@dataclass(frozen=True)
class PairSpec:
    """The two models of a pair and how it is run.

    Attributes:
        verifier: the autoregressive model.
        drafter: a DFlash checkpoint (``demo``, a directory or a hub id); None for plain decoding only.
        max_rows: most requests decoded at a time.
        threads: torch threads of each model's process on the CPU; as many as the CPUs it is given, never more.
    """

    verifier: ModelSpec = DEMO
    drafter: ModelSpec | None = DEMO
    max_rows: int = 8
    threads: int = 1


class Pair(Protocol):
    """What experiments and the server use, wherever the models live."""

    def generate(self, requests: Iterable[Request]) -> list[Completion]:
        """Run requests to their ends; completions in the order of the requests."""
        ...

    def times(self) -> EngineTimes:
        """The engine's time account since the pair was made."""
        ...

    def close(self) -> None:
        """Release the models."""
        ...


def drafter_directory(spec: ModelSpec) -> Path:
    """The checkpoint directory of a drafter; see :func:`cluster.models.loading.model_directory`."""
    return model_directory(spec, demo=DRAFTER_DIR)


def check_fits(config: DFlashConfig, verifier_config: Any, where: str) -> None:
    """Refuse a drafter made for another verifier; raises :class:`ModelError`."""
    facts = {
        "hidden_size": (config.hidden_size, verifier_config.hidden_size),
        "layers of the verifier": (config.num_target_layers, verifier_config.num_hidden_layers),
    }
    wrong = [f"{name} {ours} (the verifier has {theirs})" for name, (ours, theirs) in facts.items() if ours != theirs]
    if config.mask_token_id >= verifier_config.vocab_size:
        wrong.append(f"mask token {config.mask_token_id} outside the verifier's vocabulary")
    if wrong:
        raise ModelError(f"Expected a drafter made for this verifier, got one at {where} with {', '.join(wrong)}")


def load_drafter(spec: ModelSpec, verifier: ModelSpec) -> BlockDrafter:
    """A drafter on its own device, with the verifier's embedding and head beside it."""
    directory = drafter_directory(spec)
    model = load_dflash(directory, spec.torch_dtype, spec.device)
    verifier_config, embedding, head = load_embeddings(verifier)
    check_fits(model.config, verifier_config, str(directory))
    check_same_tokenizer(directory, spec, verifier)
    if model.d2t is not None and not 0 <= int(model.token_ids().min()) <= int(model.token_ids().max()) < head.shape[0]:
        raise ModelError(
            f"Expected d2t of {directory} to map into the verifier's {head.shape[0]} tokens, got ids outside"
        )
    return BlockDrafter(model, embedding, head)


def check_same_tokenizer(directory: Path, spec: ModelSpec, verifier: ModelSpec) -> None:
    """Compare the drafter's own tokenizer, if its checkpoint brings one, with the verifier's."""
    if not (directory / "tokenizer.json").exists():
        return
    own = load_tokenizer(ModelSpec(str(directory), spec.revision)).get_vocab()
    theirs = load_tokenizer(verifier).get_vocab()
    by_id = {i: t for t, i in theirs.items()}
    for token, index in sorted(own.items(), key=lambda pair: pair[1]):
        if by_id.get(index) != token:
            raise ModelError(
                f"Expected drafter and verifier with one tokenizer, got different ones: id {index} is {token!r} for the "
                f"drafter and {by_id.get(index)!r} for the verifier; choose a drafter trained for this verifier"
            )


def build_verifier(spec: PairSpec) -> Verifier:
    """The verifier with the feature layers that the pair's drafter asks for."""
    model = load_causal_lm(spec.verifier)
    if spec.drafter is None:
        return Verifier(model)
    config = read_config(drafter_directory(spec.drafter))
    check_fits(config, model.config, spec.drafter.name)
    return Verifier(model, config.target_layer_ids)


class LocalPair:
    """Both models in this process."""

    def __init__(self, spec: PairSpec) -> None:
        if spec.verifier.device == "cpu":
            torch.set_num_threads(spec.threads)
        self.tokenizer = load_tokenizer(spec.verifier)
        decode = text_decoder(self.tokenizer)
        verifier = build_verifier(spec)
        drafter = load_drafter(spec.drafter, spec.verifier) if spec.drafter else None
        self.engine = Engine(verifier, drafter, spec.max_rows, decode)

    def generate(self, requests: Iterable[Request]) -> list[Completion]:
        """See :class:`Pair`."""
        return in_order(requests := list(requests), self.engine.generate(requests))

    @property
    def max_block(self) -> int:
        """The largest block the drafter takes, 0 without one."""
        return self.engine.drafter.max_block if self.engine.drafter else 0

    def times(self) -> EngineTimes:
        """See :class:`Pair`."""
        return self.engine.times

    def close(self) -> None:
        """Nothing to release but memory."""


def in_order(requests: Sequence[Request], completions: Iterable[Completion]) -> list[Completion]:
    """Completions sorted into the order of their requests."""
    by_id = {c.request_id: c for c in completions}
    return [by_id[r.id] for r in requests]
