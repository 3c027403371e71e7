"""Tiny random transformers: verifiers of a few thousand weights, drafters beside them, and a byte tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from cluster.models.attention import register
from cluster.models.dflash import DFlashConfig, DFlashModel, save_dflash

Family = Literal["llama", "qwen3"]
VOCAB, HIDDEN, LAYERS = 61, 32, 3
FEATURE_LAYERS = (0, 1)


def randomise(module: nn.Module, seed: int, std: float = 0.3) -> None:
    """Weights large enough that laws are far from flat and ties do not occur."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(module.named_parameters()):
            noise = torch.randn(weight.shape, generator=rng)
            weight.copy_(1 + 0.2 * noise if "norm" in name else std * noise)


def tiny_verifier(
    family: Family = "llama", vocab: int = VOCAB, attention: str | None = None, tied: bool = False, context: int = 256
) -> Any:
    """A random causal language model; ``attention`` None takes ours."""
    shape: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": context,
        "tie_word_embeddings": tied,
        "attn_implementation": attention or register(),
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    model = LlamaForCausalLM(LlamaConfig(**shape)) if family == "llama" else Qwen3ForCausalLM(Qwen3Config(**shape))
    randomise(model, seed=0)
    return model.eval()


def tiny_drafter_config(**changes: Any) -> DFlashConfig:
    """A drafter for :func:`tiny_verifier`."""
    shape: dict[str, Any] = {
        "hidden_size": HIDDEN,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": VOCAB,
        "num_target_layers": LAYERS,
        "block_size": 7,
        "mask_token_id": VOCAB - 1,
        "target_layer_ids": FEATURE_LAYERS,
        "max_position_embeddings": 256,
    }
    return DFlashConfig(**(shape | changes))


def tiny_drafter(config: DFlashConfig | None = None, d2t: Tensor | None = None) -> DFlashModel:
    """A random drafter."""
    model = DFlashModel(config or tiny_drafter_config())
    randomise(model, seed=1)
    if d2t is not None:
        assert model.d2t is not None
        model.d2t.copy_(d2t)
    return model.eval()


def byte_tokenizer(extra: tuple[str, ...] = ("<eos>", "<mask>"), swapped: tuple[int, int] | None = None) -> Any:
    """A tokenizer of the 256 bytes and some special tokens; ``swapped`` exchanges two ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if swapped is not None:
        one, other = swapped
        alphabet[one], alphabet[other] = alphabet[other], alphabet[one]
    raw = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(list(extra))
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=extra[0])


TEXT_VOCAB = 264  # 256 bytes, two special tokens, padding


def save_pair(directory: Path, context: int = 256, drafter_context: int = 256) -> tuple[Path, Path]:
    """A verifier with its tokenizer, and a drafter, on disk in float32."""
    verifier, drafter = directory / "verifier", directory / "drafter"
    tiny_verifier(vocab=TEXT_VOCAB, context=context, attention="eager").save_pretrained(verifier)
    byte_tokenizer().save_pretrained(verifier)
    config = tiny_drafter_config(vocab_size=TEXT_VOCAB, mask_token_id=257, max_position_embeddings=drafter_context)
    save_dflash(tiny_drafter(config), drafter, torch.float32)
    return verifier, drafter
