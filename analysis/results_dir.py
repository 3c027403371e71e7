"""A results directory over several runs: who owns it, and what a resume still has to do.

claim_results(dir, experiment, fingerprint, environment)   # once per run
todo = planned - finished_cells(dir)
"""

import json
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from analysis.atomic import write_atomic
from analysis.errors import ResultsError, ResultsWarning
from analysis.reader import read_table, result_files
from analysis.schema import CELLS, GENERATIONS, SCHEMA_VERSION


def claim_results(
    results_dir: str | Path, experiment_name: str, fingerprint: str, environment: Mapping[str, Any]
) -> None:
    """Make `results_dir` this experiment's, or refuse: results of two experiments never mix.

    Writes `environment.json`: experiment, fingerprint, schema version, and under `runs` the `environment`
    (versions, argv, device ...) of every run that claimed the directory, the latest last.

    Raises:
        ResultsError: the directory belongs to another experiment, or holds other files.
    """
    directory = Path(results_dir)
    path = directory / "environment.json"
    record = _read_claim(path) if path.exists() else None
    if record is None:
        _refuse_foreign(directory)
        record = {"experiment": experiment_name, "fingerprint": fingerprint, "runs": []}
    if (record["experiment"], record["fingerprint"]) != (experiment_name, fingerprint):
        raise ResultsError(
            f"Expected {directory} to hold results of experiment '{experiment_name}' ({fingerprint}), "
            f"got those of '{record['experiment']}' ({record['fingerprint']}): choose another directory."
        )
    record["schema_version"] = SCHEMA_VERSION
    record["runs"].append({"claimed_at": datetime.now(UTC).isoformat(timespec="seconds"), **environment})
    write_atomic(path, (json.dumps(record, indent=2, default=str) + "\n").encode())


def finished_cells(results_dir: str | Path) -> set[str]:
    """Ids of the cells that need not run again: status 'ok', cell and generations files readable.

    A file that cannot be read (cut short by a kill) is moved to `set_aside/<table>/<name>.broken` and named
    in a `ResultsWarning`; its cell is not finished. A directory without cells has none finished.

    Raises:
        ResultsError: a file has another schema version.
    """
    directory = Path(results_dir)
    rows = result_files(directory, "generations")
    broken_rows = {path.stem for path in rows if _set_aside_if_broken(path, GENERATIONS)}
    finished = set()
    for path in result_files(directory, "cells"):
        if _set_aside_if_broken(path, CELLS):
            continue
        row = read_table(path, CELLS).select(["cell_id", "status"]).to_pylist()[0]
        has_rows = (directory / "generations" / path.name).exists() and path.stem not in broken_rows
        if row["status"] == "ok" and has_rows:
            finished.add(str(row["cell_id"]))
    return finished


def _read_claim(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text())
        return {"experiment": record["experiment"], "fingerprint": record["fingerprint"],
                "runs": list(record["runs"])}  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise ResultsError(
            f"Expected {path} to say which experiment owns the directory, got unreadable content ({error}): "
            "choose another directory, or remove the file if you know the results are yours."
        ) from error


def _refuse_foreign(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise ResultsError(f"Expected a directory for results, got the file {directory}.")
    others = [p.name for p in directory.iterdir() if not p.name.startswith(".")] if directory.exists() else []
    if others:
        raise ResultsError(
            f"Expected a new, empty or claimed results directory, got {directory} holding "
            f"{', '.join(sorted(others)[:3])} and no environment.json: choose another directory."
        )


def _set_aside_if_broken(path: Path, schema: pa.Schema) -> bool:
    try:
        read_table(path, schema)
        return False
    except (OSError, pa.ArrowException) as error:
        target = path.parent.parent / "set_aside" / path.parent.name / f"{path.name}.broken"
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
        message = f"Set aside {path} as {target}: it cannot be read ({error})."
        warnings.warn(message, ResultsWarning, stacklevel=3)
        return True
