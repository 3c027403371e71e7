"""Loading by name: ``demo``, a directory, or a hub id."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from cluster.models.attention import register
from cluster.models.demo import demo_verifier_dir

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class ModelError(RuntimeError):
    """A model cannot be loaded or does not fit the other; the message says why and what to do."""


@dataclass(frozen=True)
class ModelSpec:
    """Which model, and how to hold it.

    Attributes:
        name: ``demo``, a local directory, or a hub id.
        revision: a hub revision; None takes the default branch.
        dtype: ``float32``, ``bfloat16`` or ``float16``.
        device: a torch device, e.g. ``cpu`` or ``cuda:0``.
    """

    name: str = "demo"
    revision: str | None = None
    dtype: str = "bfloat16"
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"Expected dtype to be one of {', '.join(DTYPES)}, got {self.dtype!r}")


def verifier_path(spec: ModelSpec) -> str:
    """What to hand to `transformers`: a directory or a hub id."""
    return str(demo_verifier_dir()) if spec.name == "demo" else spec.name


def load_causal_lm(spec: ModelSpec) -> Any:
    """The `transformers` causal language model of ``spec``, in eval mode, with our attention.

    Raises:
        ModelError: the weights are missing or unreadable.
    """
    try:
        model = AutoModelForCausalLM.from_pretrained(
            verifier_path(spec), revision=spec.revision, dtype=DTYPES[spec.dtype], attn_implementation=register()
        )
    except Exception as error:
        raise ModelError(_unreadable("verifier", spec.name, error)) from error
    return model.to(spec.device).eval()


def load_tokenizer(spec: ModelSpec) -> Any:
    """The tokenizer of ``spec``; raises :class:`ModelError` if it cannot be read."""
    try:
        return AutoTokenizer.from_pretrained(verifier_path(spec), revision=spec.revision)
    except Exception as error:
        raise ModelError(_unreadable("tokenizer", spec.name, error)) from error


def load_embeddings(spec: ModelSpec) -> tuple[Any, Tensor, Tensor]:
    """The verifier's config, token embedding and output head ``[V, hidden]``, without the rest of its weights.

    Raises:
        ModelError: the weights are missing or unreadable, or hold no such tensors.
    """
    try:
        config = AutoConfig.from_pretrained(verifier_path(spec), revision=spec.revision)
        directory = Path(verifier_path(spec))
        if not directory.is_dir():
            directory = Path(snapshot_download(spec.name, revision=spec.revision, allow_patterns=["*.safetensors*"]))
        found: dict[str, Tensor] = {}
        for file in sorted(directory.glob("*.safetensors")):
            with safe_open(file, framework="pt", device=spec.device) as tensors:
                for name in tensors.keys():  # noqa: SIM118 (not a dict)
                    if name.endswith(("embed_tokens.weight", "lm_head.weight")):
                        found[name.rsplit(".", 2)[-2]] = tensors.get_tensor(name).to(DTYPES[spec.dtype])
        embedding = found["embed_tokens"]
    except Exception as error:
        raise ModelError(_unreadable("verifier", spec.name, error)) from error
    return config, embedding, found.get("lm_head", embedding)


def _unreadable(kind: str, name: str, error: Exception) -> str:
    first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    where = "" if Path(name).exists() or name == "demo" else " (no such directory here, so it was taken for a hub id)"
    return f"Expected a readable {kind} at {name!r}{where}, got: {first_line}"
