"""Which arithmetic ``auto`` means."""

from __future__ import annotations

import pytest
import torch

from cluster.models.loading import ModelSpec
from cluster.models.precision import native_bfloat16, resolve_dtype


def cpu_with(monkeypatch: pytest.MonkeyPatch, **capabilities: bool) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"avx2": True, "avx512_f": True, "avx512_bf16": False, "amx_bf16": False}, "float32"),
        ({"avx2": True, "avx512_bf16": True, "amx_bf16": False}, "bfloat16"),
        ({"avx512_bf16": False, "amx_bf16": True}, "bfloat16"),
        ({"bf16": True}, "bfloat16"),
        ({}, "float32"),
    ],
)
def test_auto_on_a_cpu_is_what_it_has_instructions_for(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool], expected: str
) -> None:
    cpu_with(monkeypatch, **capabilities)
    assert resolve_dtype("auto", "cpu") == expected
    assert ModelSpec().dtype == expected


def test_auto_on_an_accelerator_is_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_with(monkeypatch)
    assert resolve_dtype("auto", "cuda:1") == "bfloat16"


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_a_named_dtype_is_taken_as_it_is(name: str) -> None:
    assert resolve_dtype(name, "cpu") == ModelSpec(dtype=name).dtype == name
    assert ModelSpec(dtype=name).torch_dtype == getattr(torch, name)


def test_this_machine_answers() -> None:
    assert native_bfloat16() in (True, False)


def test_an_unknown_name() -> None:
    with pytest.raises(ValueError, match="Expected dtype to be one of auto, float32, bfloat16, float16, got 'int4'"):
        resolve_dtype("int4", "cpu")
