"""The pair on Ray: drafter and verifier in actors of their own, one call between them per round.

The engine runs beside the verifier, so a round costs one round trip: features of the last committed tokens go to the
drafter, ids come back. Tensors cross as numpy arrays, never as torch tensors.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch import Tensor

from cluster.engine import Engine
from cluster.messages import Completion, ContextUpdate, DraftCall, DraftReply, EngineTimes, Request, RowMove
from cluster.models.loading import load_tokenizer, text_decoder
from cluster.pair import PairSpec, build_verifier, in_order, load_drafter

_WAIT_S = 60.0


class PlacementError(RuntimeError):
    """The cluster cannot give the pair what it asks for."""


@dataclass(frozen=True)
class PairResources:
    """What each actor of a pair gets. On the CPU an actor runs as many torch threads as whole CPUs, at least one.

    Shares below one CPU are meant for machines with few cores: the two models of a batch take turns, so a pair of two
    half CPUs keeps one core busy.
    """

    draft_cpus: float = 1.0
    verify_cpus: float = 1.0
    draft_gpus: float = 0.0
    verify_gpus: float = 0.0

    def bundles(self) -> list[dict[str, float]]:
        """The placement group's bundles: drafter, verifier."""
        draft, verify = {"CPU": self.draft_cpus}, {"CPU": self.verify_cpus}
        if self.draft_gpus:
            draft["GPU"] = self.draft_gpus
        if self.verify_gpus:
            verify["GPU"] = self.verify_gpus
        return [draft, verify]


@dataclass(frozen=True)
class _PackedUpdate:
    """A :class:`ContextUpdate` whose features are raw bytes in a numpy array (numpy has no bfloat16)."""

    first_row: int
    first_positions: tuple[int, ...]
    dtype: str
    data: NDArray[np.uint8]

    @classmethod
    def pack(cls, update: ContextUpdate) -> _PackedUpdate:
        features = update.features.cpu().contiguous()
        data = features.view(torch.uint8).numpy()
        return cls(update.first_row, update.first_positions, str(features.dtype).removeprefix("torch."), data)

    def unpack(self) -> ContextUpdate:
        features: Tensor = torch.from_numpy(self.data.copy()).view(getattr(torch, self.dtype))
        return ContextUpdate(self.first_row, self.first_positions, features)


def _use_threads(cpus: float) -> None:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    torch.set_num_threads(max(1, int(cpus)))


@ray.remote
class DraftActor:
    """Hosts the drafter."""

    def __init__(self, spec: PairSpec, cpus: float) -> None:
        _use_threads(cpus)
        assert spec.drafter is not None
        self._drafter = load_drafter(spec.drafter, spec.verifier)

    def limits(self) -> tuple[int, int]:
        """The largest block and the context, in tokens."""
        return self._drafter.max_block, self._drafter.context_tokens

    def draft(self, call: DraftCall, packed: list[_PackedUpdate | RowMove]) -> DraftReply:
        """A draft call whose journal travels packed."""
        journal = tuple(entry if isinstance(entry, RowMove) else entry.unpack() for entry in packed)
        return self._drafter.draft(_with_journal(call, journal))


def _with_journal(call: DraftCall, journal: tuple[ContextUpdate | RowMove, ...]) -> DraftCall:
    return DraftCall(journal, call.anchors, call.anchor_positions, call.lengths, call.samplings, call.efforts)


class _RemoteDrafter:
    """The verifier's view of the drafter's actor; a :class:`cluster.messages.DraftPort`."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self.max_block, self.context_tokens = ray.get(actor.limits.remote())

    def draft(self, call: DraftCall) -> DraftReply:
        packed = [_PackedUpdate.pack(e) if isinstance(e, ContextUpdate) else e for e in call.journal]
        reply: DraftReply = ray.get(self._actor.draft.remote(_with_journal(call, ()), packed))
        return reply


@ray.remote
class VerifierActor:
    """Hosts the verifier and the engine."""

    def __init__(self, spec: PairSpec, cpus: float, draft_actor: Any | None) -> None:
        _use_threads(cpus)
        tokenizer = load_tokenizer(spec.verifier)
        drafter = _RemoteDrafter(draft_actor) if draft_actor is not None else None
        self._engine = Engine(build_verifier(spec), drafter, spec.max_rows, text_decoder(tokenizer))

    def generate(self, requests: list[Request]) -> list[Completion]:
        """Run requests to their ends, in their order."""
        return in_order(requests, self._engine.generate(requests))

    def times(self) -> EngineTimes:
        """The engine's time account."""
        return self._engine.times


class RayPair:
    """The pair in two actors of one placement group (PACK: side by side, on separate GPUs where there are two).

    Args:
        spec: the models.
        resources: what each actor gets.
        group: an existing placement group to live in, e.g. a Tune trial's; None makes one and removes it on close.
        first_bundle: the drafter's bundle in ``group``; the verifier's is the next.
        wait_s: how long to wait for the resources.

    Raises:
        PlacementError: the cluster did not have the resources in time.
    """

    def __init__(
        self,
        spec: PairSpec,
        resources: PairResources,
        group: PlacementGroup | None = None,
        first_bundle: int = 0,
        wait_s: float = _WAIT_S,
    ) -> None:
        self._own_group = group is None
        self._group = group if group is not None else _place(resources, wait_s)
        self._draft: Any = None
        if spec.drafter is not None:
            options = self._options(first_bundle, resources.draft_cpus, resources.draft_gpus)
            self._draft = DraftActor.options(**options).remote(spec, resources.draft_cpus)  # type: ignore[attr-defined]
        options = self._options(first_bundle + 1, resources.verify_cpus, resources.verify_gpus)
        self._verify = VerifierActor.options(**options).remote(spec, resources.verify_cpus, self._draft)  # type: ignore[attr-defined]
        try:
            ray.get(self._verify.times.remote())  # both models are loaded, or their error is raised here
        except BaseException:
            self.close()
            raise

    def _options(self, bundle: int, cpus: float, gpus: float) -> dict[str, Any]:
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        return {"num_cpus": cpus, "num_gpus": gpus, "scheduling_strategy": strategy}

    def generate(self, requests: Iterable[Request]) -> list[Completion]:
        """See :class:`cluster.pair.Pair`."""
        completions: list[Completion] = ray.get(self._verify.generate.remote(list(requests)))
        return completions

    def times(self) -> EngineTimes:
        """See :class:`cluster.pair.Pair`."""
        times: EngineTimes = ray.get(self._verify.times.remote())
        return times

    def close(self) -> None:
        """End the actors and give the resources back."""
        for actor in (self._verify, self._draft):
            if actor is not None:
                ray.kill(actor)
        if self._own_group:
            remove_placement_group(self._group)


def _place(resources: PairResources, wait_s: float) -> PlacementGroup:
    """A ready placement group for the pair, or :class:`PlacementError`."""
    group: PlacementGroup = placement_group(resources.bundles(), strategy="PACK")
    if not group.wait(wait_s):
        remove_placement_group(group)
        have = {k: v for k, v in ray.cluster_resources().items() if k in ("CPU", "GPU")}
        raise PlacementError(
            f"Expected room for a drafter with {resources.bundles()[0]} and a verifier with {resources.bundles()[1]} "
            f"within {wait_s:g} s, got a cluster of {have} (of which {ray.available_resources()} is free); "
            "ask for less in the experiment's resources, or add nodes"
        )
    return group
