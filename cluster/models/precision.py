"""The arithmetic of a model: a named dtype, or ``auto``, the one that its device is fast in."""

from __future__ import annotations

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_NATIVE_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")  # x86 (two extensions) and ARM


def resolve_dtype(name: str, device: str) -> str:
    """A name in :data:`DTYPES` for ``name``, which may also be ``auto``.

    ``auto`` is bfloat16 on accelerators and on CPUs with bfloat16 instructions. Other CPUs emulate it, several times
    slower than float32 wherever more than one token is computed at a time, so there it is float32. It is looked up on
    the machine that asks.

    Raises:
        ValueError: an unknown name.
    """
    if name == "auto":
        return "bfloat16" if not device.startswith("cpu") or native_bfloat16() else "float32"
    if name not in DTYPES:
        raise ValueError(f"Expected dtype to be one of auto, {', '.join(DTYPES)}, got {name!r}")
    return name


def native_bfloat16() -> bool:
    """Whether this machine's CPU has bfloat16 instructions."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(key, False) for key in _NATIVE_BFLOAT16)
