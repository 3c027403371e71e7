"""The sandbox: what passes, what fails, and that nothing gets out."""

import time
from pathlib import Path

import pytest

from jobs.tasks import sandbox
from jobs.tasks.sandbox import passes


def refused(statement: str, error: str = "PermissionError") -> str:
    """A program that passes exactly when the statement raises the error."""
    return f"import os, subprocess, socket\ntry:\n    {statement}\nexcept {error}:\n    ok = True\nassert ok\n"


class TestPasses:
    def test_a_program_that_ends(self) -> None:
        assert passes("import math, collections, typing\nassert math.sqrt(4) == 2")

    @pytest.mark.parametrize(
        "program",
        [
            "assert False",
            "def f(:",
            "raise SystemExit(0)",
            "import os\nos._exit(0)",
            "print('ready')\nraise ValueError",
            "input()",
        ],
    )
    def test_a_program_that_does_not(self, program: str) -> None:
        assert not passes(program)

    def test_a_forged_report_does_not_count(self) -> None:
        assert not passes("import os\nfor fd in range(32):\n    try: os.write(fd, b'0' * 32)\n    except OSError: pass")

    def test_threads_that_never_end_do_not_hold_it_up(self) -> None:
        assert passes("import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()")


class TestLimits:
    def test_an_endless_loop_is_ended(self) -> None:
        start = time.monotonic()
        assert not passes("while True: pass", time_limit=1.0)
        assert time.monotonic() - start < 5

    def test_sleeping_counts_as_time(self) -> None:
        assert not passes("import time\ntime.sleep(60)", time_limit=1.0)

    def test_memory_is_bounded(self) -> None:
        assert not passes("x = bytearray(2 << 30)")

    def test_endless_output_is_thrown_away(self) -> None:
        assert not passes("import sys\nwhile True: print('x' * 10000); print('y' * 10000, file=sys.stderr)", 1.0)


class TestRefusals:
    def test_files_are_neither_written_nor_deleted(self, tmp_path: Path) -> None:
        kept = tmp_path / "kept"
        kept.write_text("text")
        assert passes(refused(f"open({str(kept)!r}, 'w')"))
        assert passes(refused(f"open({str(kept)!r}, 'r+')"))
        assert passes(refused(f"os.remove({str(kept)!r})"))
        assert passes(refused("open('new', 'x')"))
        assert kept.read_text() == "text"
        assert list(tmp_path.iterdir()) == [kept]

    @pytest.mark.parametrize(
        "statement", ["subprocess.run(['true'])", "os.system('true')", "os.fork()", "socket.socket()", "os.kill(1, 0)"]
    )
    def test_processes_sockets_and_signals(self, statement: str) -> None:
        assert passes(refused(statement))

    def test_the_environment_is_empty_and_the_folder_is_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_TOKEN", "secret")
        assert passes("import os\nassert 'HF_TOKEN' not in os.environ and os.listdir() == []")


def test_a_sandbox_that_cannot_start_is_an_error_not_a_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "CHILD", tmp_path / "missing.py")
    with pytest.raises(RuntimeError, match=r"Expected the sandbox to start, got: .*missing\.py"):
        passes("pass")
