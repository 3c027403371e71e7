"""Experiments: validation, the cells they ask for, their identities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from jobs.cell import Cell, Identity
from jobs.experiment import Experiment, ExperimentError, digest, load_experiment

ROOT = Path(__file__).parents[2]
IDENTITY = Identity("e", "f" * 16, "c0de", "veri", "draf", "CPU")


def minimal(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "name": "small",
        "tasks": [{"name": "text_json", "items": 2}],
        "effort": [{"passes": [1, 2]}],
        "leniency": [{"value": [0, 1]}],
    }
    return base | changes


def load(tmp_path: Path, raw: Any) -> Experiment:
    path = tmp_path / "e.yaml"
    path.write_text(yaml.safe_dump(raw))
    return load_experiment(path)


class TestValidation:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"efort": []}, "efort: unknown key"),
            ({"tasks": [{"name": "text_json", "items": 2, "itms": 3}]}, "itms: unknown key"),
            ({"tasks": [{"name": "poetry", "items": 2}]}, "Expected a task of"),
            ({"tasks": [{"name": "chat", "items": 0}]}, "greater than or equal to 1"),
            ({"effort": [{"passes": [9]}]}, "1 <= passes <= block"),
            ({"effort": [{"reveal": "threshold", "passes": [2]}]}, "confidence in"),
            ({"leniency": [{"value": [-1]}]}, ">= 0"),
            ({"leniency": [{"rule": "nice"}]}, "margin, match"),
            ({"temperature": [-0.5]}, "temperature >= 0"),
            ({"name": "No Spaces"}, "pattern"),
        ],
    )
    def test_a_bad_value_is_named(self, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
        with pytest.raises(ExperimentError, match="Expected a valid experiment") as caught:
            load(tmp_path, minimal(**changes))
        assert words in str(caught.value)

    def test_every_problem_is_named_at_once(self, tmp_path: Path) -> None:
        with pytest.raises(ExperimentError) as caught:
            load(tmp_path, minimal(efort=[], batch_size=0))
        assert "efort" in str(caught.value)
        assert "batch_size" in str(caught.value)

    def test_no_mapping_and_no_file_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ExperimentError, match="Expected a mapping"):
            load(tmp_path, ["a"])
        with pytest.raises(ExperimentError, match="Expected a readable experiment file"):
            load_experiment(tmp_path / "none.yaml")

    @pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda p: p.stem)
    def test_shipped_experiments_are_valid(self, path: Path) -> None:
        assert load_experiment(path).cells()


class TestPrecision:
    def test_auto_is_settled_when_the_file_is_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        named = load(tmp_path, minimal(verifier={"dtype": "float32"}, drafter={"dtype": "float32"}))
        monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
        assert load(tmp_path, minimal()) == named
        assert load(tmp_path, minimal()).fingerprint() == named.fingerprint()
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
        assert load(tmp_path, minimal()).verifier.dtype == "bfloat16"

    def test_an_unknown_dtype_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ExperimentError, match=r"verifier\.dtype: Expected dtype to be one of .* got 'int4'"):
            load(tmp_path, minimal(verifier={"dtype": "int4"}))


class TestCells:
    def test_one_ar_cell_per_task_and_repeat_beside_the_grid(self, tmp_path: Path) -> None:
        cells = load(tmp_path, minimal(repeats=2)).cells()
        assert len(cells) == 2 * (1 + 2 * 2)
        assert sum(c["effort"] is None for c in cells) == 2

    def test_a_point_asked_for_twice_is_measured_once(self, tmp_path: Path) -> None:
        assert len(load(tmp_path, minimal(effort=[{"passes": [1, 1]}], leniency=[{"value": [0, 0]}])).cells()) == 2


class TestIdentity:
    def ids(self, tmp_path: Path, identity: Identity = IDENTITY, **changes: Any) -> set[str]:
        experiment = load(tmp_path, minimal(**changes))
        return {Cell.of(c, experiment, identity).cell_id for c in experiment.cells()}

    def test_identities_are_distinct_and_stable(self, tmp_path: Path) -> None:
        assert len(self.ids(tmp_path)) == 5
        assert self.ids(tmp_path) == self.ids(tmp_path)

    def test_a_larger_grid_keeps_the_cells_it_shares(self, tmp_path: Path) -> None:
        assert self.ids(tmp_path) < self.ids(tmp_path, leniency=[{"value": [0, 1, 2]}])

    @pytest.mark.parametrize(
        "changes",
        [
            {"seed": 1},
            {"batch_size": 2},
            {"top_k": 5},
            {"tasks": [{"name": "text_json", "items": 3}]},
            {"tasks": [{"name": "text_json", "items": 2, "max_tokens": 5}]},
            {"verifier": {"dtype": "float16"}},
        ],
    )
    def test_a_changed_condition_is_another_cell(self, tmp_path: Path, changes: dict[str, Any]) -> None:
        assert self.ids(tmp_path).isdisjoint(self.ids(tmp_path, **changes))

    @pytest.mark.parametrize("field", ["code_version", "verifier_fingerprint", "drafter_fingerprint", "device"])
    def test_changed_code_models_or_device_are_another_cell(self, tmp_path: Path, field: str) -> None:
        other = Identity(**(vars(IDENTITY) | {field: "other"}))
        assert self.ids(tmp_path).isdisjoint(self.ids(tmp_path, other))

    def test_values_of_different_structure_never_share_a_digest(self) -> None:
        assert digest({"a": "1-b=2"}) != digest({"a": 1, "b": 2})
