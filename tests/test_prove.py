"""A tenth of `make prove`: the real pair is lossless at leniency 0, and the proof notices when it is not."""

from __future__ import annotations

import pytest

from benchmarks.prove import main

pytestmark = pytest.mark.slow


def test_in_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--prompts", "5", "--tokens", "16", "--transport", "local"]) == 0
    assert "0 differ" in capsys.readouterr().out


@pytest.mark.usefixtures("ray_cluster")
def test_through_actors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--prompts", "2", "--tokens", "12", "--transport", "ray"]) == 0
    assert "0 differ" in capsys.readouterr().out


def test_accepting_everything_fails_the_proof() -> None:
    assert main(["--prompts", "2", "--tokens", "12", "--transport", "local", "--sabotage"]) == 1
