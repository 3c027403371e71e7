"""Read results: `load_cells(dir)` and `load_generations(dir)` give pandas frames with the schema's types.

    cells = analysis.load_cells("results/demo")
    cells[cells.status == "ok"].groupby("task").speedup.max()

An unreadable file is named in a `ResultsWarning` and left out; the others load.
"""

import json
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.errors import ResultsError, ResultsWarning
from analysis.schema import CELLS, GENERATIONS, SCHEMA_VERSION, VERSION_KEY


def load_cells(results_dir: str | Path) -> pd.DataFrame:
    """All cells, failed ones too, one row per cell x repeat x task; columns as in `analysis.schema.CELLS`.

    Integer columns that may be null are pandas `Int64`; other missing values are NaN, None or NaT.

    Raises:
        ResultsError: the directory is missing or has no cells, or a file has another schema version.
    """
    return _load(Path(results_dir), "cells", CELLS)


def load_generations(results_dir: str | Path) -> pd.DataFrame:
    """All generations, one row per prompt of a cell; columns as in `analysis.schema.GENERATIONS`.

    Raises:
        ResultsError: as in `load_cells`.
    """
    return _load(Path(results_dir), "generations", GENERATIONS)


def load_environment(results_dir: str | Path) -> dict[str, Any]:
    """`environment.json` as a dict (experiment, fingerprint, runs); empty where there is none to read."""
    try:
        record = json.loads((Path(results_dir) / "environment.json").read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """One file with exactly the schema's columns and types.

    Raises:
        ResultsError: the schema version differs, or the columns do.
        OSError, pyarrow.ArrowException: the file cannot be read.
    """
    table = pq.read_table(path, partitioning=None)
    version = (table.schema.metadata or {}).get(VERSION_KEY, b"none").decode()
    if version != str(SCHEMA_VERSION):
        raise ResultsError(
            f"Expected schema version {SCHEMA_VERSION} in {path}, got {version}: "
            "read it with the version of Specfrontier that wrote it, or run the experiment again."
        )
    if missing := [name for name in schema.names if name not in table.column_names]:
        raise ResultsError(f"Expected every column of schema version {version} in {path}, got no {missing}.")
    return table.select(schema.names).cast(schema)


def result_files(directory: Path, table: str) -> list[Path]:
    """The Parquet files of one table, sorted by name; temporary files are skipped."""
    return sorted(path for path in (directory / table).glob("*.parquet") if not path.name.startswith("."))


def _load(directory: Path, name: str, schema: pa.Schema) -> pd.DataFrame:
    if not directory.is_dir():
        raise ResultsError(f"Expected a results directory, got {directory}: check the path.")
    paths = result_files(directory, name)
    if not paths:
        raise ResultsError(
            f"Expected result files in {directory / name}, got none: run `python -m jobs.sweep` with "
            f"`--results {directory}` first."
        )
    tables = [table for path in paths if (table := _read_or_warn(path, schema)) is not None]
    if not tables:
        raise ResultsError(f"Expected readable files in {directory / name}, got {len(paths)} broken: rerun.")
    return _to_frame(pa.concat_tables(tables), schema)


def _read_or_warn(path: Path, schema: pa.Schema) -> pa.Table | None:
    try:
        return read_table(path, schema)
    except (OSError, pa.ArrowException) as error:
        warnings.warn(f"Left out {path}: it cannot be read ({error}).", ResultsWarning, stacklevel=4)
        return None


def _to_frame(table: pa.Table, schema: pa.Schema) -> pd.DataFrame:
    frame: pd.DataFrame = table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    plain = {f.name: "int64" for f in schema if f.type == pa.int64() and not f.nullable}
    return frame.astype(plain)
