"""`analysis` works on a laptop: no torch, no transformers, no Ray."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCKED = ("torch", "transformers", "ray")


def test_every_module_imports_with_the_heavy_libraries_blocked() -> None:
    modules = sorted(f"analysis.{path.stem}" for path in (ROOT / "analysis").glob("*.py"))
    code = (
        f"import importlib, sys; sys.modules.update(dict.fromkeys({BLOCKED!r}))\n"
        f"for name in {modules!r}: importlib.import_module(name)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
