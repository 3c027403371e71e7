"""The results directory: writing, reading, claiming, resuming, and files that went wrong."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis import (
    ResultsError,
    ResultsWarning,
    claim_results,
    finished_cells,
    load_cells,
    load_environment,
    load_generations,
    write_cell,
)
from analysis.schema import ACCEPTANCE_COLUMNS, CELLS, GENERATIONS, VERSION_KEY
from tests.analysis.synthetic import cell_row, generation_row


def speculative(**changes: Any) -> dict[str, Any]:
    return cell_row(task="json", repeat=0, passes=2, margin=0.0, num_prompts=2) | changes


def ar(**changes: Any) -> dict[str, Any]:
    return cell_row(task="json", repeat=0, passes=None, margin=None, num_prompts=2) | changes


def rows(cell: dict[str, Any], **changes: Any) -> list[dict[str, Any]]:
    return [generation_row(cell, 0, **changes), generation_row(cell, 1)]


class TestSchema:
    @pytest.mark.parametrize("schema", [CELLS, GENERATIONS])
    def test_every_field_says_unit_and_meaning(self, schema: pa.Schema) -> None:
        for field in schema:
            assert set(field.metadata) == {b"unit", b"description"}
            assert field.metadata[b"description"]

    def test_metrics_may_be_missing(self) -> None:
        metrics = ("quality", "speedup", "tokens_per_s", *ACCEPTANCE_COLUMNS)
        assert all(CELLS.field(name).nullable for name in metrics)

    def test_names_are_unique(self) -> None:
        assert len(set(CELLS.names)) == len(CELLS.names)
        assert len(set(GENERATIONS.names)) == len(GENERATIONS.names)


class TestWrite:
    def test_round_trip(self, tmp_path: Path) -> None:
        cell = speculative(speedup=2.5, acceptance_histogram=[1, 0, 1])
        write_cell(tmp_path, cell, rows(cell, required_margins=[[0.5, float("inf")], []]))
        loaded = load_cells(tmp_path).iloc[0]
        assert (loaded["speedup"], loaded["effort_passes"]) == (2.5, 2)
        assert list(loaded["acceptance_histogram"]) == [1, 0, 1]
        margins = load_generations(tmp_path)["required_margins"][0]
        assert [list(m) for m in margins] == [[0.5, np.inf], []]

    def test_pandas_reads_the_directory(self, tmp_path: Path) -> None:
        for cell in (speculative(), ar()):
            write_cell(tmp_path, cell, rows(cell))
        (tmp_path / "cells" / ".half.parquet.tmp").write_bytes(b"PAR1")
        assert len(pd.read_parquet(tmp_path / "cells")) == 2
        assert pq.read_schema(next((tmp_path / "cells").glob("*.parquet"))).metadata[VERSION_KEY] == b"1"

    def test_left_out_counters_are_null(self, tmp_path: Path) -> None:
        write_cell(tmp_path, ar(), rows(ar()))
        loaded = load_cells(tmp_path).iloc[0]
        for name in set(ACCEPTANCE_COLUMNS) - {"acceptance_histogram"}:
            assert loaded[name] is None or pd.isna(loaded[name])

    def test_same_id_replaces(self, tmp_path: Path) -> None:
        for speedup in (1.0, 2.0):
            write_cell(tmp_path, speculative(speedup=speedup), rows(speculative()))
        assert load_cells(tmp_path)["speedup"].tolist() == [2.0]

    def test_failed_cell_needs_no_generations(self, tmp_path: Path) -> None:
        write_cell(tmp_path, speculative(status="failed", error="out of memory"), [])
        assert load_cells(tmp_path)["error"].tolist() == ["out of memory"]

    def test_no_temporary_file_stays(self, tmp_path: Path) -> None:
        write_cell(tmp_path, speculative(), rows(speculative()))
        assert [p.name for p in tmp_path.rglob(".*")] == []

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"sped_up": 2.0}, "got sped_up"),
            ({"device": None}, "got none for device"),
            ({"speedup": "fast"}, "Expected double in cell column 'speedup', got 'fast'"),
            ({"repeat": 0.5}, "column 'repeat'"),
            ({"repeat": True}, "column 'repeat', got True"),
            ({"acceptance_histogram": [1, 0.5]}, "column 'acceptance_histogram'"),
            ({"num_spec_rounds": float("nan")}, "column 'num_spec_rounds'"),
            ({"status": "done"}, "status to be one of ok, failed, got 'done'"),
            ({"cell_id": "../escape"}, "it names a file"),
            ({"status": "failed"}, "`error` to be filled"),
            ({"effort_passes": None}, "Expected a speculative cell to fill"),
            ({"num_prompts": 3}, "Expected 3 generations"),
        ],
    )
    def test_wrong_cells_are_refused(self, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
        cell = speculative(**changes)
        with pytest.raises(ResultsError, match=message):
            write_cell(tmp_path, cell, rows(cell))
        assert list(tmp_path.iterdir()) == []

    def test_ar_cells_have_no_acceptance(self, tmp_path: Path) -> None:
        with pytest.raises(ResultsError, match=r"ar cell, got \['draft_acceptance_rate'\]"):
            write_cell(tmp_path, ar(draft_acceptance_rate=0.0), rows(ar()))

    def test_generations_of_another_cell_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ResultsError, match="carry its cell's cell_id"):
            write_cell(tmp_path, speculative(), rows(ar()))

    def test_two_rows_of_a_prompt_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ResultsError, match="duplicates"):
            write_cell(tmp_path, speculative(), [generation_row(speculative(), 0)] * 2)


class TestRead:
    def test_int_float_and_null_files_concatenate(self, tmp_path: Path) -> None:
        for index, quality in enumerate((1, 0.5, None)):
            cell = speculative(cell_id=f"c{index}", quality=quality)
            write_cell(tmp_path, cell, rows(cell, score=quality))
        assert load_cells(tmp_path)["quality"].tolist()[:2] == [1.0, 0.5]
        assert load_generations(tmp_path)["score"].isna().sum() == 4

    def test_narrower_types_are_cast(self, tmp_path: Path) -> None:
        write_cell(tmp_path, speculative(quality=1), rows(speculative()))
        path = next((tmp_path / "cells").glob("*.parquet"))
        table = pq.read_table(path)
        index = table.column_names.index("quality")
        pq.write_table(table.set_column(index, "quality", pa.array([1], pa.int32())), path)
        assert load_cells(tmp_path)["quality"].tolist() == [1.0]

    def test_unreadable_file_is_named_and_others_load(self, tmp_path: Path) -> None:
        write_cell(tmp_path, speculative(), rows(speculative()))
        (tmp_path / "cells" / "torn.parquet").write_bytes(b"PAR1 torn")
        with pytest.warns(ResultsWarning, match=r"torn\.parquet"):
            assert len(load_cells(tmp_path)) == 1

    def test_other_schema_version_is_refused(self, tmp_path: Path) -> None:
        write_cell(tmp_path, speculative(), rows(speculative()))
        path = next((tmp_path / "cells").glob("*.parquet"))
        pq.write_table(pq.read_table(path).replace_schema_metadata({VERSION_KEY: b"99"}), path)
        with pytest.raises(ResultsError, match=r"Expected schema version 1 in .*, got 99"):
            load_cells(tmp_path)

    def test_missing_and_empty_directories_are_clear(self, tmp_path: Path) -> None:
        with pytest.raises(ResultsError, match="Expected a results directory"):
            load_cells(tmp_path / "nowhere")
        with pytest.raises(ResultsError, match="Expected result files"):
            load_cells(tmp_path)


class TestClaim:
    def test_writes_environment_and_counts_runs(self, tmp_path: Path) -> None:
        for argv in (["a"], ["b"]):
            claim_results(tmp_path / "r", "demo", "f0", {"argv": argv})
        record = load_environment(tmp_path / "r")
        assert (record["experiment"], record["fingerprint"]) == ("demo", "f0")
        assert [run["argv"] for run in record["runs"]] == [["a"], ["b"]]

    @pytest.mark.parametrize(("name", "fingerprint"), [("other", "f0"), ("demo", "f1")])
    def test_another_experiment_is_refused(self, tmp_path: Path, name: str, fingerprint: str) -> None:
        claim_results(tmp_path, "demo", "f0", {})
        before = (tmp_path / "environment.json").read_text()
        with pytest.raises(ResultsError, match="choose another directory"):
            claim_results(tmp_path, name, fingerprint, {})
        assert (tmp_path / "environment.json").read_text() == before

    def test_foreign_files_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").touch()
        with pytest.raises(ResultsError, match=r"thesis\.tex"):
            claim_results(tmp_path, "demo", "f0", {})

    def test_unreadable_claim_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "environment.json").write_text(json.dumps({"experiment": "demo"}))
        with pytest.raises(ResultsError, match="unreadable content"):
            claim_results(tmp_path, "demo", "f0", {})


class TestFinished:
    def test_only_ok_cells_with_generations(self, tmp_path: Path) -> None:
        cells = [speculative(cell_id="good"), speculative(cell_id="bare"), speculative(cell_id="bad")]
        cells[2] |= {"status": "failed", "error": "reason"}
        for cell in cells:
            write_cell(tmp_path, cell, rows(cell))
        (tmp_path / "generations" / "bare.parquet").unlink()
        assert finished_cells(tmp_path) == {"good"}

    def test_nothing_yet(self, tmp_path: Path) -> None:
        assert finished_cells(tmp_path) == set()

    @pytest.mark.parametrize("table", ["cells", "generations"])
    def test_torn_files_are_set_aside(self, tmp_path: Path, table: str) -> None:
        for name in ("good", "torn"):
            cell = speculative(cell_id=name)
            write_cell(tmp_path, cell, rows(cell))
        path = tmp_path / table / "torn.parquet"
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.warns(ResultsWarning, match=r"Set aside .*torn\.parquet"):
            assert finished_cells(tmp_path) == {"good"}
        assert not path.exists()
        assert (tmp_path / "set_aside" / table / "torn.parquet.broken").exists()
        assert finished_cells(tmp_path) == {"good"}
