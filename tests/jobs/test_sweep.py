"""The sweep on Ray Tune, with the real demo pair on a few prompts."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

import analysis
from jobs.sweep import main
from tests.cluster.toys import subprocess_environment

pytestmark = pytest.mark.slow


def write_experiment(path: Path, **changes: Any) -> Path:
    raw: dict[str, Any] = {
        "name": "tiny",
        "tasks": [{"name": "key_value", "items": 2}],
        "effort": [{"passes": [2]}],
        "leniency": [{"value": [0]}],
        "ar_reference_items": 1,
        "resources": {"transport": "ray", "draft_cpus": 0.5, "verify_cpus": 0.5},
    }
    path.write_text(yaml.safe_dump(raw | changes))
    return path


@pytest.mark.usefixtures("ray_cluster")
class TestSweep:
    def test_runs_the_grid_and_resumes_what_is_missing(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file, results = write_experiment(tmp_path / "e.yaml"), tmp_path / "results"
        assert main([str(file), "--results", str(results)]) == 0
        cells, generations = analysis.load_cells(results), analysis.load_generations(results)
        assert sorted(cells["decoding"]) == ["ar", "speculative"]
        assert cells["status"].tolist() == ["ok", "ok"]
        tokens = {d: g["token_ids"].map(list).tolist() for d, g in _by_decoding(cells, generations)}
        assert tokens["ar"] == tokens["speculative"]  # short greedy answers; margin 0 is lossless
        assert not (results / ".tune").exists()

        assert main([str(file), "--results", str(results)]) == 2
        assert "--resume" in capsys.readouterr().err

        victim = min((results / "cells").glob("*.parquet"))
        victim.write_bytes(victim.read_bytes()[:100])  # as a kill in the middle of a write would leave it
        with pytest.warns(analysis.ResultsWarning, match="Set aside"):
            assert main([str(file), "--results", str(results), "--resume"]) == 0
        assert "2 cells, 1 to run" in capsys.readouterr().err
        assert len(analysis.load_cells(results)) == 2

        other = write_experiment(tmp_path / "o.yaml", name="other")
        assert main([str(other), "--results", str(results), "--resume"]) == 2
        assert "Expected" in capsys.readouterr().err

    def test_a_trial_that_can_never_be_placed_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        wide = {"transport": "ray", "draft_cpus": 64, "verify_cpus": 1}
        file = write_experiment(tmp_path / "e.yaml", resources=wide)
        assert main([str(file), "--results", str(tmp_path / "results")]) == 2
        message = capsys.readouterr().err
        assert "64" in message
        assert "resources" in message


def _by_decoding(cells: Any, generations: Any) -> list[tuple[str, Any]]:
    return [
        (row["decoding"], generations[generations["cell_id"] == row["cell_id"]].sort_values("prompt_index"))
        for _, row in cells.iterrows()
    ]


@pytest.mark.ray
def test_ctrl_c_keeps_finished_cells_and_does_not_wait_for_running_ones(tmp_path: Path) -> None:
    long = [{"name": "key_value", "items": 1}, {"name": "chat", "items": 64}]
    file, results = write_experiment(tmp_path / "e.yaml", tasks=long), tmp_path / "results"
    command = [sys.executable, "-m", "jobs.sweep", str(file), "--results", str(results)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=subprocess_environment()) as sweep:
        try:
            while not any((results / "cells").glob("*.parquet")):
                assert sweep.poll() is None
                time.sleep(0.2)
            sweep.send_signal(signal.SIGINT)
            _, message = sweep.communicate(timeout=60)
        finally:
            sweep.kill()
    assert sweep.returncode == 130
    kept = len(analysis.load_cells(results))
    assert 0 < kept < 4
    assert f"stopped; {kept} finished cells are kept, the same command with --resume goes on" in message
    assert not (results / ".tune").exists()


@pytest.mark.parametrize("text", ["name: [", "- a", "name: x\nbogus: 1\n"])
def test_a_bad_file_is_one_clear_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    file = tmp_path / "e.yaml"
    file.write_text(text)
    assert main([str(file), "--results", str(tmp_path / "results")]) == 2
    assert capsys.readouterr().err.startswith("error: Expected")
    assert not (tmp_path / "results").exists()
