"""A drafter that starts from its verifier's last layers.

Starting there reaches in 100 steps what random weights do not reach in 400. The verifier's input norms are folded into
the projections (the context enters through one shared norm), ``fc`` passes the latest feature through, and the per-head
query and key norms, which the verifier lacks, get the average size its heads have on a sample text.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cluster.models.dflash import DFlashConfig, DFlashModel
from cluster.models.verifier import Verifier


def drafter_config(
    verifier: Verifier, layers: int, block: int, mask_token_id: int, draft_vocab_size: int | None
) -> DFlashConfig:
    """The shape of a drafter of ``layers`` verifier-like layers that drafts ``block`` tokens."""
    config = verifier.model.config
    return DFlashConfig(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", config.hidden_size // config.num_attention_heads),
        vocab_size=config.vocab_size,
        num_target_layers=config.num_hidden_layers,
        block_size=block + 1,
        mask_token_id=mask_token_id,
        target_layer_ids=verifier.feature_layers,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=config.rope_parameters["rope_theta"],
        max_position_embeddings=config.max_position_embeddings,
        draft_vocab_size=draft_vocab_size,
    )


@torch.no_grad()
def from_verifier(config: DFlashConfig, verifier: Verifier, token_ids: Tensor, sample: Tensor) -> DFlashModel:
    """A float32 drafter made of the verifier's last layers.

    Args:
        config: its shape.
        verifier: a Llama-like verifier (q, k, v, o; gate, up, down; RMS norms).
        token_ids: ``[V_d]`` int64, the draft vocabulary.
        sample: ``[1, T]`` int64, a text on which the size of queries and keys is measured.
    """
    decoder = verifier.model.get_decoder()
    sources = list(decoder.layers)[-config.num_hidden_layers :]
    sizes = _head_sizes(verifier, sources, sample, config.head_dim)
    model = DFlashModel(config)
    model.d2t = (token_ids - torch.arange(len(token_ids))).to(model.fc.weight.device)
    for layer, source, (query_size, key_size) in zip(model.blocks(), sources, sizes, strict=True):
        fold = source.input_layernorm.weight.float()
        for name in ("q_proj", "k_proj", "v_proj"):
            getattr(layer.self_attn, name).weight.copy_(getattr(source.self_attn, name).weight.float() * fold)
        layer.self_attn.o_proj.weight.copy_(source.self_attn.o_proj.weight)
        layer.self_attn.q_norm.weight.fill_(query_size)
        layer.self_attn.k_norm.weight.fill_(key_size)
        for name in ("gate_proj", "up_proj", "down_proj"):
            getattr(layer.mlp, name).weight.copy_(getattr(source.mlp, name).weight)
        layer.post_attention_layernorm.weight.copy_(source.post_attention_layernorm.weight)
    model.norm.weight.copy_(decoder.norm.weight)
    model.fc.weight.zero_()
    model.fc.weight[:, -config.hidden_size :] = torch.eye(config.hidden_size)
    return model


def _head_sizes(verifier: Verifier, sources: list[Any], sample: Tensor, head_dim: int) -> list[tuple[float, float]]:
    """Root mean square of the query and key entries of each source layer on a sample text."""
    measured: dict[nn.Module, float] = {}

    def hook(module: nn.Module, _inputs: Any, output: Tensor) -> None:
        heads = output.float().view(*output.shape[:-1], -1, head_dim)
        measured[module] = float(heads.pow(2).mean(dim=-1).sqrt().mean())

    modules = [m for s in sources for m in (s.self_attn.q_proj, s.self_attn.k_proj)]
    handles = [m.register_forward_hook(hook) for m in modules]
    verifier.encode(sample)
    for handle in handles:
        handle.remove()
    return [(measured[s.self_attn.q_proj], measured[s.self_attn.k_proj]) for s in sources]
