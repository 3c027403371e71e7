"""Run untrusted Python in a process of its own, with limits, and tell whether it came to its end.

THIS EXECUTES CODE THAT A MODEL WROTE. The limits guard a machine against accidents (endless loops, memory, stray
files, left-over processes), not against an attacker: run adversarial code in a container.

What holds: isolated mode (`python -I -S -B`, an empty environment, a temporary working directory that is removed);
bounded wall-clock time, CPU time, address space and open files; no byte written to a file. An audit hook refuses
deleting, renaming, opening for writing, starting processes, signals, sockets and ctypes. The process is killed with
its whole group.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

READY = "ready\n"
CHILD = Path(__file__).with_name("_sandbox_child.py")


def passes(program: str, time_limit: float = 5.0, memory_mib: int = 512) -> bool:
    """Whether `program` (Python source) runs to its end without an exception within `time_limit` seconds.

    Leaving early, say through `exit()`, is not passing. `memory_mib` bounds the address space (on Linux).

    Raises:
        RuntimeError: the sandbox itself cannot start on this machine, which says nothing about the program.
    """
    token = secrets.token_hex(16)
    order = {"program": program, "ready": READY, "token": token, "seconds": time_limit, "mib": memory_mib}
    with tempfile.TemporaryDirectory(prefix="specfrontier-") as folder:
        report = _run(json.dumps(order), folder, time_limit)
    return report == READY + token


def _run(order: str, folder: str, time_limit: float) -> str:
    """Hand the order to a fresh interpreter and return its report ("" when it ran out of time)."""
    with _start(folder) as process:
        try:
            report, errors = process.communicate(order, timeout=time_limit)
        except subprocess.TimeoutExpired:
            return ""
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # gone already
                os.killpg(process.pid, signal.SIGKILL)
    if not report.startswith(READY):
        raise RuntimeError(
            f"Expected the sandbox to start, got: {errors.strip()[-300:]}; check its limits on this host."
        )
    return report


def _start(folder: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", str(CHILD)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env={},
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
