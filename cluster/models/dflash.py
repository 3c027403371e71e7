"""The DFlash block-diffusion network (arXiv 2602.06036), with the checkpoint layout of the public `dflash` package.

A block is ``[anchor, slot 1 .. slot K]``. Slots attend to each other in both directions and to every committed token
before the anchor through keys and values made from the verifier's features of those tokens: ``k_proj(hidden_norm(fc(
features)))``. Slot k predicts the token at anchor + k. Embedding and head are the verifier's own and not in the
checkpoint. A reduced draft vocabulary, if any, is the extra tensor ``d2t``: the verifier id of draft id i is
``i + d2t[i]`` (the layout of the public `speculators` checkpoints).
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""``attend(layer, query [B, H, T, D], key, value [B, G, T, D]) -> [B, T, H, D]``: the block against its context."""

Rotary = tuple[Tensor, Tensor]

_UNSUPPORTED = {
    "is_causal": (None, False),
    "use_sliding_window": (None, False),
    "attention_bias": (None, False),
    "hidden_act": ("silu",),
}
_UNSUPPORTED_DFLASH = {
    "final_logit_softcapping": (None, 0, 0.0),
    "output_multiplier": (None, 1, 1.0),
    "input_embedding_scale": (None, 1, 1.0),
    "selector_rank": (None,),
    "conv_kernel_size": (None,),
}


class CheckpointError(RuntimeError):
    """A drafter checkpoint is missing, unreadable, incomplete, or uses what is not supported here."""


@dataclass(frozen=True)
class DFlashConfig:
    """Shape of a DFlash drafter; field names are those of its ``config.json``.

    ``block_size`` counts the anchor's slot, so a block drafts ``block_size − 1`` tokens. ``target_layer_ids`` are the
    verifier layers whose outputs condition the drafter, ``draft_vocab_size`` the length of ``d2t`` (None: full).
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    num_target_layers: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_position_embeddings: int = 32768
    draft_vocab_size: int | None = None

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> DFlashConfig:
        """Read a ``config.json``; raises :class:`CheckpointError` naming what is missing or not supported."""
        inner = raw.get("dflash_config", {})
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        wrong = [f"{k}={raw.get(k)!r}" for k, allowed in _UNSUPPORTED.items() if k in raw and raw[k] not in allowed]
        wrong += [f"{k}={inner[k]!r}" for k, ok in _UNSUPPORTED_DFLASH.items() if k in inner and inner[k] not in ok]
        wrong += [f"layer type {t!r}" for t in sorted(set(raw.get("layer_types") or ())) if t != "full_attention"]
        if rope.get("rope_type", rope.get("type", "default")) != "default":
            wrong.append(f"rope type {rope.get('rope_type', rope.get('type'))!r}")
        if wrong:
            raise CheckpointError(f"Expected a plain DFlash drafter, got {', '.join(wrong)}, which is not supported")
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            found = inner.get(field.name, raw.get(field.name))
            if found is not None:
                values[field.name] = tuple(found) if field.name == "target_layer_ids" else found
        values["rope_theta"] = rope.get("rope_theta", raw.get("rope_theta", 10000.0))
        if "target_layer_ids" not in values and {"num_target_layers", "num_hidden_layers"} <= values.keys():
            values["target_layer_ids"] = default_target_layers(values["num_target_layers"], values["num_hidden_layers"])
        required = {f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING}
        missing = sorted(required - values.keys())
        if missing:
            raise CheckpointError(f"Expected {', '.join(missing)} in the drafter's config.json, found no such key")
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        """The ``config.json`` that the public `dflash` package reads."""
        raw = dataclasses.asdict(self)
        inner = {k: raw.pop(k) for k in ("mask_token_id", "target_layer_ids")}
        if raw["draft_vocab_size"] is None:
            del raw["draft_vocab_size"]
        rope = {"rope_type": "default", "rope_theta": raw.pop("rope_theta")}
        return raw | {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "hidden_act": "silu",
            "attention_bias": False,
            "tie_word_embeddings": False,
            "rope_parameters": rope,
            "dflash_config": {**inner, "target_layer_ids": list(self.target_layer_ids)},
        }


def default_target_layers(target_layers: int, count: int) -> tuple[int, ...]:
    """The feature layers DFlash takes when none are named: evenly spaced from layer 1 to the fourth from the end."""
    if count == 1:
        return (target_layers // 2,)
    return tuple(round(1 + i * (target_layers - 4) / (count - 1)) for i in range(count))


def rotary(positions: Tensor, head_dim: int, theta: float) -> Rotary:
    """Cosines and sines ``[B, 1, T, D]`` float32 of positions ``[B, T]``."""
    frequency = theta ** (-torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim)
    angle = positions[:, None, :, None].float() * frequency  # [B, 1, T, D/2]
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, angles: Rotary) -> Tensor:
    """Apply rotary position embedding to ``[B, H, T, D]``."""
    cos, sin = (part.to(x.dtype) for part in angles)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class DFlashAttention(nn.Module):
    """Projections and per-head norms of one layer; what attends to what is the caller's business."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        query_size = config.num_attention_heads * config.head_dim
        key_size = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, key_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, key_size, bias=False)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)

    def query(self, hidden: Tensor, angles: Rotary) -> Tensor:
        """``[B, T, hidden] -> [B, H, T, D]``, normed and rotated."""
        return rotate(self.q_norm(self._heads(self.q_proj(hidden))).transpose(1, 2), angles)

    def key_value(self, hidden: Tensor, angles: Rotary) -> tuple[Tensor, Tensor]:
        """``[B, T, hidden] ->`` keys (normed, rotated) and values ``[B, G, T, D]``."""
        key = rotate(self.k_norm(self._heads(self.k_proj(hidden))).transpose(1, 2), angles)
        return key, self._heads(self.v_proj(hidden)).transpose(1, 2)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.head_dim)


class DFlashMLP(nn.Module):
    """The gated feed-forward part of a layer."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, hidden] -> [B, T, hidden]``."""
        out: Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DFlashLayer(nn.Module):
    """One pre-norm transformer layer over a block."""

    def __init__(self, config: DFlashConfig, index: int) -> None:
        super().__init__()
        self.index = index
        self.self_attn = DFlashAttention(config)
        self.mlp = DFlashMLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, hidden: Tensor, angles: Rotary, attend: Attend) -> Tensor:
        """``[B, T, hidden] -> [B, T, hidden]``."""
        x = self.input_layernorm(hidden)
        query = self.self_attn.query(x, angles)
        attended = attend(self.index, query, *self.self_attn.key_value(x, angles))
        hidden = hidden + self.self_attn.o_proj(attended.flatten(2))
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class DFlashModel(nn.Module):
    """The drafter network. State-dict names are those of the public package; ``d2t`` is a buffer when present."""

    d2t: Tensor | None

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.target_layer_ids) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(DFlashLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        size = config.draft_vocab_size
        self.register_buffer("d2t", None if size is None else torch.zeros(size, dtype=torch.int64))

    def blocks(self) -> Iterator[DFlashLayer]:
        """The layers, in order."""
        return (layer for layer in self.layers if isinstance(layer, DFlashLayer))

    def token_ids(self) -> Tensor:
        """``[V_d]`` int64, the verifier id of each column of the draft logits."""
        if self.d2t is None:
            return torch.arange(self.config.vocab_size, device=self.fc.weight.device)
        return torch.arange(self.d2t.shape[0], device=self.d2t.device) + self.d2t

    def angles(self, positions: Tensor) -> Rotary:
        """Rotary tables of positions ``[B, T]``."""
        return rotary(positions, self.config.head_dim, self.config.rope_theta)

    def context(self, features: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Every layer's keys and values ``[B, G, T, D]`` from verifier features ``[B, T, F]`` at ``[B, T]``."""
        hidden, angles = self.hidden_norm(self.fc(features)), self.angles(positions)
        return [layer.self_attn.key_value(hidden, angles) for layer in self.blocks()]

    def forward(self, embedded: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Run blocks ``[B, T, hidden]`` at positions ``[B, T]``; returns normed hidden states ``[B, T, hidden]``."""
        hidden, angles = embedded, self.angles(positions)
        for layer in self.layers:
            hidden = layer(hidden, angles, attend)
        out: Tensor = self.norm(hidden)
        return out


def read_config(directory: Path) -> DFlashConfig:
    """The ``config.json`` of a checkpoint directory; raises :class:`CheckpointError` if it cannot be read."""
    try:
        raw: Any = json.loads((directory / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"Expected a readable drafter checkpoint at {directory}, got: {error}") from error
    if not (isinstance(raw, dict) and isinstance(raw.get("dflash_config", {}), dict)):
        raise CheckpointError(f"Expected JSON objects in the config.json of {directory}, got something else")
    return DFlashConfig.from_json(raw)


def load_dflash(directory: Path, dtype: torch.dtype, device: str = "cpu") -> DFlashModel:
    """Load a checkpoint directory (``config.json`` and one or more ``*.safetensors``).

    Raises:
        CheckpointError: missing or unreadable files; missing, extra or misshapen tensors, which it lists.
    """
    config = read_config(directory)
    try:
        state: dict[str, Tensor] = {}
        for file in sorted(directory.glob("*.safetensors")):
            state |= load_file(file)
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"Expected a readable drafter checkpoint at {directory}, got: {error}") from error
    if not state:
        raise CheckpointError(f"Expected *.safetensors files in {directory}, found none")
    if "d2t" in state and config.draft_vocab_size is None:
        config = dataclasses.replace(config, draft_vocab_size=state["d2t"].shape[0])
    with torch.device("meta"):
        wanted = {name: t.shape for name, t in DFlashModel(config).state_dict().items()}
    problems = [f"missing {n}" for n in sorted(wanted.keys() - state.keys())]
    problems += [f"unexpected {n}" for n in sorted(state.keys() - wanted.keys())]
    problems += [
        f"{n} of shape {tuple(state[n].shape)} instead of {tuple(wanted[n])}"
        for n in sorted(wanted.keys() & state.keys())
        if state[n].shape != wanted[n]
    ]
    if problems:
        raise CheckpointError(f"Expected the tensors of a DFlash drafter in {directory}, got: {'; '.join(problems)}")
    model = DFlashModel(config)
    model.load_state_dict(state)
    return model.to(device=device, dtype=dtype).eval()


def save_dflash(model: DFlashModel, directory: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write ``config.json`` and ``model.safetensors``, each atomically."""
    directory.mkdir(parents=True, exist_ok=True)
    state = {
        name: (t if t.dtype == torch.int64 else t.to(dtype)).detach().cpu().contiguous()
        for name, t in model.state_dict().items()
    }
    scratch = Path(tempfile.mkdtemp(prefix=".saving-", dir=directory))
    try:
        save_file(state, scratch / "model.safetensors", metadata={"format": "pt"})
        (scratch / "config.json").write_text(json.dumps(model.config.to_json(), indent=2) + "\n")
        for name in ("model.safetensors", "config.json"):
            (scratch / name).chmod(0o644)
            (scratch / name).replace(directory / name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
