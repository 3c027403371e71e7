"""Loading by name: ``demo``, a directory, or a hub id."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from cluster.decoding.stopping import Decode
from cluster.models.attention import register
from cluster.models.demo import demo_verifier_dir
from cluster.models.precision import DTYPES, resolve_dtype


class ModelError(RuntimeError):
    """A model cannot be loaded or does not fit the other; the message says why and what to do."""


@dataclass(frozen=True)
class ModelSpec:
    """Which model, and how to hold it.

    Attributes:
        name: ``demo``, a local directory, or a hub id.
        revision: a hub revision; None takes the default branch.
        dtype: ``float32``, ``bfloat16`` or ``float16``; ``auto`` becomes the one that the device is fast in.
        device: a torch device, e.g. ``cpu`` or ``cuda:0``.
    """

    name: str = "demo"
    revision: str | None = None
    dtype: str = "auto"
    device: str = "cpu"

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", resolve_dtype(self.dtype, self.device))

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]


DEMO = ModelSpec()


def model_directory(spec: ModelSpec, demo: Path | None = None) -> Path:
    """The directory of a model's files; downloads them when ``spec.name`` is a hub id.

    Args:
        spec: the model.
        demo: what the name ``demo`` stands for; None is the demo verifier.

    Raises:
        ModelError: neither a directory here nor available from the hub.
    """
    if spec.name == "demo":
        return demo or demo_verifier_dir()
    if Path(spec.name).is_dir():
        return Path(spec.name)
    try:
        return Path(snapshot_download(spec.name, revision=spec.revision))
    except Exception as error:
        raise ModelError(_unreadable("model", spec.name, error)) from error


def load_causal_lm(spec: ModelSpec) -> Any:
    """The `transformers` causal language model of ``spec``, in eval mode, with our attention.

    Raises:
        ModelError: the weights are missing, incomplete or unreadable, or need attention that ours is not.
    """
    try:
        found: Any = AutoModelForCausalLM.from_pretrained(
            model_directory(spec),
            dtype=spec.torch_dtype,
            attn_implementation=register(),
            output_loading_info=True,
        )
        model, loaded = found
        if loaded["missing_keys"]:  # `transformers` filled them with random numbers
            raise ValueError(f"weights without {', '.join(sorted(loaded['missing_keys']))}")
    except Exception as error:
        raise ModelError(_unreadable("verifier", spec.name, error)) from error
    _check_attention(model.config, spec.name)
    return model.to(spec.device).eval()


def _check_attention(config: Any, name: str) -> None:
    """Refuse attention that ours would silently compute as plain causal attention."""
    layer_types = set(getattr(config, "layer_types", None) or ())
    wrong = [f"layers of type {t!r}" for t in sorted(layer_types - {"full_attention"})]
    wrong += [
        f"{key} {getattr(config, key)}"
        for key in ("sliding_window", "attn_logit_softcapping")
        if getattr(config, key, None) is not None
    ]
    if wrong:
        raise ModelError(
            f"Expected a verifier with plain causal attention, got {name!r} with {', '.join(wrong)}; choose another model"
        )


def load_tokenizer(spec: ModelSpec) -> Any:
    """The tokenizer of ``spec``; raises :class:`ModelError` if it cannot be read."""
    try:
        return AutoTokenizer.from_pretrained(model_directory(spec))
    except Exception as error:
        raise ModelError(_unreadable("tokenizer", spec.name, error)) from error


def text_decoder(tokenizer: Any) -> Decode:
    """Token ids to the text a user gets: special tokens left out."""
    return partial(tokenizer.decode, skip_special_tokens=True)


def stop_ids(tokenizer: Any) -> frozenset[int]:
    """The ids that end an answer: the tokenizer's end of sequence."""
    return frozenset({tokenizer.eos_token_id} - {None})


def load_embeddings(spec: ModelSpec) -> tuple[Any, Tensor, Tensor]:
    """The verifier's config, token embedding and output head ``[V, hidden]``, without the rest of its weights.

    Raises:
        ModelError: the weights are missing or unreadable, or hold no such tensors.
    """
    try:
        directory = model_directory(spec)
        config = AutoConfig.from_pretrained(directory)
        found: dict[str, Tensor] = {}
        for file in sorted(directory.glob("*.safetensors")):
            with safe_open(file, framework="pt", device=spec.device) as tensors:
                for name in tensors.keys():  # noqa: SIM118 (not a dict)
                    if name.endswith(("embed_tokens.weight", "lm_head.weight")):
                        found[name.rsplit(".", 2)[-2]] = tensors.get_tensor(name).to(spec.torch_dtype)
        embedding = found["embed_tokens"]
    except Exception as error:
        raise ModelError(_unreadable("verifier", spec.name, error)) from error
    return config, embedding, found.get("lm_head", embedding)


def fingerprint(directory: Path) -> str:
    """A short hash of a model's configuration and weights (12 hex digits).

    Weight files count with their size and sixteen evenly spaced MiB, so that a model of any size takes a moment.
    """
    digest = hashlib.sha256((directory / "config.json").read_bytes())
    for file in sorted(directory.glob("*.safetensors")):
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}".encode())
        with file.open("rb") as data:
            for part in range(16):
                data.seek(max(0, size - 2**20) * part // 15)
                digest.update(data.read(2**20))
    return digest.hexdigest()[:12]


def _unreadable(kind: str, name: str, error: Exception) -> str:
    first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    where = "" if Path(name).exists() or name == "demo" else " (no such directory here, so it was taken for a hub id)"
    return f"Expected a readable {kind} at {name!r}{where}, got: {first_line}"
