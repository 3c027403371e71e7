"""An experiment: its YAML file, validated, and the cells it asks for."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from cluster.decoding import Effort, Leniency, Sampling
from cluster.decoding.effort import Reveal
from cluster.models.loading import ModelSpec
from cluster.models.precision import resolve_dtype
from cluster.pair import PairSpec
from jobs.tasks import REGISTRY


class ExperimentError(ValueError):
    """An experiment file that cannot be run; the message says what was expected and what was found."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(_Strict):
    """Which model and how it is held; see :class:`cluster.models.loading.ModelSpec`."""

    name: str = "demo"
    revision: str | None = None
    device: str = "cpu"
    dtype: str = Field(default="auto", validate_default=True)

    @field_validator("dtype")
    @classmethod
    def _resolved(cls, dtype: str, info: ValidationInfo) -> str:
        """``auto`` is settled where the experiment is read, so that all its cells share one arithmetic."""
        return resolve_dtype(dtype, info.data.get("device", "cpu"))

    def spec(self) -> ModelSpec:
        return ModelSpec(self.name, self.revision, self.dtype, self.device)


class TaskConfig(_Strict):
    """A task and how much of it. More items narrow the intervals; a smaller ``max_tokens`` cuts answers short."""

    name: str
    items: Annotated[int, Field(ge=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.name not in REGISTRY:
            raise ValueError(f"Expected a task of {', '.join(sorted(REGISTRY))}, got {self.name!r}")
        return self


class EffortConfig(_Strict):
    """One family of efforts: every combination of block, passes and value under one reveal rule."""

    block: list[int] = [8]
    passes: list[int] = [1]
    reveal: Reveal = "quota"
    value: list[float | None] = [None]

    def efforts(self) -> list[Effort]:
        return [Effort(b, p, self.reveal, v) for b in self.block for p in self.passes for v in self.value]


class LeniencyConfig(_Strict):
    """One rule and the values of its knob."""

    rule: str = "margin"
    value: list[float] = [0.0]

    def leniencies(self) -> list[Leniency]:
        return [Leniency(self.rule, v) for v in self.value]


class ResourceConfig(_Strict):
    """Where a pair runs: ``ray`` puts drafter and verifier in actors of their own, ``local`` both in one process.

    On the CPU, shares below 1 let several pairs take turns on few cores (a pair's two models never work at once).
    """

    transport: Literal["ray", "local"] = "ray"
    draft_cpus: Annotated[float, Field(gt=0)] = 1.0
    verify_cpus: Annotated[float, Field(gt=0)] = 1.0
    draft_gpus: Annotated[float, Field(ge=0)] = 0.0
    verify_gpus: Annotated[float, Field(ge=0)] = 0.0

    @property
    def verify_threads(self) -> int:
        """Torch threads of the verifier on the CPU: the CPUs of its process, at least one."""
        shared = self.draft_cpus if self.transport == "local" else 0.0
        return max(1, int(self.verify_cpus + shared))


class Experiment(_Strict):
    """A sweep over effort × leniency × temperature × task × repeat.

    ``ar_reference_items``: in every cell, so many prompts, evenly spaced, are also decoded plainly right before or after,
    so that the cell's speed-up is a ratio measured in the same minutes. An AR cell per task, repeat and temperature is
    always part of the sweep.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
    verifier: ModelConfig = Field(default_factory=ModelConfig)
    drafter: ModelConfig = Field(default_factory=ModelConfig)
    tasks: Annotated[list[TaskConfig], Field(min_length=1)]
    effort: Annotated[list[EffortConfig], Field(min_length=1)]
    leniency: Annotated[list[LeniencyConfig], Field(min_length=1)]
    temperature: list[float] = [0.0]
    top_k: int | None = None
    top_p: float | None = None
    repeats: Annotated[int, Field(ge=1)] = 1
    seed: int = 0
    batch_size: Annotated[int, Field(ge=1)] = 1
    ar_reference_items: Annotated[int, Field(ge=1)] = 8
    resources: ResourceConfig = ResourceConfig()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [task.name for task in self.tasks]
        if len(set(names)) != len(names):
            raise ValueError(f"Expected every task once, got {', '.join(names)}")
        for family in self.effort:
            family.efforts()
        for rule in self.leniency:
            rule.leniencies()
        for temperature in self.temperature:
            Sampling(temperature, self.top_k, self.top_p, self.seed)
        return self

    def pair(self) -> PairSpec:
        """The pair that every cell runs on."""
        return PairSpec(self.verifier.spec(), self.drafter.spec(), self.batch_size, self.resources.verify_threads)

    def fingerprint(self) -> str:
        """A hash of everything in the file."""
        return digest(self.model_dump(mode="json"))

    def cells(self) -> list[dict[str, Any]]:
        """Every cell's own configuration, as plain data; an effort of None is the AR cell."""
        efforts = [e for family in self.effort for e in family.efforts()]
        rules = [r for rule in self.leniency for r in rule.leniencies()]
        points: list[tuple[Effort | None, Leniency | None]] = [(None, None)]
        points += [(effort, rule) for effort in dict.fromkeys(efforts) for rule in dict.fromkeys(rules)]
        return [
            {
                "task": task.model_dump(),
                "effort": vars(effort) if effort else None,
                "leniency": vars(rule) if rule else None,
                "temperature": temperature,
                "repeat": repeat,
            }
            for repeat in range(self.repeats)
            for task in self.tasks
            for temperature in self.temperature
            for effort, rule in points
        ]


def digest(value: Any) -> str:
    """A short hash (16 hex digits) of plain data; values of different structure never share one."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def load_experiment(path: Path) -> Experiment:
    """Read and validate an experiment file.

    Raises:
        ExperimentError: unreadable, not YAML, an unknown key or a bad value; every problem is named.
    """
    try:
        raw = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ExperimentError(f"Expected a readable experiment file, got {path}: {error}") from error
    if not isinstance(raw, dict):
        raise ExperimentError(f"Expected a mapping in {path}, got {type(raw).__name__}")
    try:
        return Experiment.model_validate(raw)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, e['loc'])) or 'experiment'}: {_problem(e)}" for e in error.errors()]
        raise ExperimentError(f"Expected a valid experiment in {path}, got {'; '.join(problems)}") from error


def _problem(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "unknown key (remove it or correct its name)"
    return str(error["msg"]).removeprefix("Value error, ")
