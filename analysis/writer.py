"""Write results: one cell at a time, atomically, checked against the schema.

A cell's generations are written first, its `cells/` file last: that file is the commit mark.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.atomic import write_atomic
from analysis.errors import ResultsError
from analysis.schema import (
    ACCEPTANCE_COLUMNS,
    CELLS,
    DECODINGS,
    GENERATIONS,
    STATUSES,
    TRANSPORTS,
)

_SAFE_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_INTEGER_LISTS = (pa.list_(pa.int32()), pa.list_(pa.int64()))
_EFFORT = ("effort_block", "effort_passes", "effort_reveal", "leniency_rule")


def write_cell(results_dir: str | Path, cell: Mapping[str, Any], generations: Sequence[Mapping[str, Any]]) -> None:
    """Check a cell and its generations against the schema and write both files atomically.

    Nullable columns may be left out (they become null); nothing else may be missing or added. A failed cell
    carries its reason in `error` and may have no generations. Writing the same `cell_id` again replaces it.

    Raises:
        ResultsError: a key is unknown or missing, a value has the wrong type, or the rows contradict
            each other; nothing is written then.
    """
    cell_table = _to_table([cell], CELLS, "cell")
    _check_cell(cell)
    rows = _to_table(generations, GENERATIONS, "generation")
    _check_generations(cell, generations)
    name = f"{cell['cell_id']}.parquet"
    write_atomic(Path(results_dir) / "generations" / name, _parquet_bytes(rows))
    write_atomic(Path(results_dir) / "cells" / name, _parquet_bytes(cell_table))


def _to_table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema, what: str) -> pa.Table:
    known = set(schema.names)
    required = {field.name for field in schema if not field.nullable}
    for row in rows:
        if unknown := sorted(set(row) - known):
            raise ResultsError(
                f"Expected only columns of the {what} schema, got {', '.join(unknown)}: "
                "rename them or add them to analysis/schema.py."
            )
        if missing := sorted(name for name in required if row.get(name) is None):
            raise ResultsError(
                f"Expected a value for every column of a {what} that may not be null, got none for "
                f"{', '.join(missing)}: fill them in."
            )
    return pa.table([_column(rows, field, what) for field in schema], schema=schema)


def _column(rows: Sequence[Mapping[str, Any]], field: pa.Field, what: str) -> pa.Array:
    values = [row.get(field.name) for row in rows]
    try:
        if pa.types.is_integer(field.type) or field.type in _INTEGER_LISTS:
            _refuse_fractions(values)
        return pa.array(values, type=field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ResultsError(
            f"Expected {field.type} in {what} column '{field.name}', got {_shown(values)}: convert it ({error})."
        ) from error


def _refuse_fractions(values: Iterable[Any]) -> None:
    """Arrow would cut 0.5 to 0 and take True for 1."""
    for value in values:
        if isinstance(value, (list, tuple, np.ndarray)):
            _refuse_fractions(value)
        elif isinstance(value, (bool, np.bool_)):
            raise TypeError("a bool is not a number")
        elif isinstance(value, (float, np.floating)) and not float(value).is_integer():
            raise ValueError(f"{value} is not a whole number")


def _shown(values: Sequence[Any]) -> str:
    text = ", ".join(repr(value) for value in values[:3])
    return text if len(text) <= 80 else text[:77] + "..."


def _check_cell(cell: Mapping[str, Any]) -> None:
    for name, allowed in (("status", STATUSES), ("decoding", DECODINGS), ("transport", TRANSPORTS)):
        if cell[name] not in allowed:
            raise ResultsError(f"Expected {name} to be one of {', '.join(allowed)}, got '{cell[name]}'.")
    if not _SAFE_ID.fullmatch(cell["cell_id"]):
        raise ResultsError(
            f"Expected a cell_id of letters, digits, '.', '_' and '-' (it names a file), "
            f"got '{cell['cell_id']}': hash the configuration."
        )
    if (cell["status"] == "failed") != bool(cell.get("error")):
        raise ResultsError("Expected `error` to be filled for failed cells and for no others: give the reason.")
    filled = [name for name in _EFFORT if cell.get(name) is not None]
    if cell["decoding"] == "speculative" and len(filled) != len(_EFFORT):
        raise ResultsError(f"Expected a speculative cell to fill {', '.join(_EFFORT)}, got only {filled}.")
    counters = [name for name in ACCEPTANCE_COLUMNS if cell.get(name) is not None]
    if cell["decoding"] == "ar" and filled + counters:
        raise ResultsError(f"Expected nulls for knobs and acceptance of an ar cell, got {filled + counters}.")


def _check_generations(cell: Mapping[str, Any], generations: Sequence[Mapping[str, Any]]) -> None:
    keys = ("cell_id", "task", "repeat")
    for row in generations:
        if any(row[key] != cell[key] for key in keys):
            raise ResultsError(
                f"Expected every generation to carry its cell's {', '.join(keys)} {[cell[k] for k in keys]}, "
                f"got {[row[k] for k in keys]}."
            )
    if len({row["prompt_index"] for row in generations}) != len(generations):
        raise ResultsError(f"Expected one generation per prompt_index, got duplicates in {cell['cell_id']}.")
    if cell["status"] == "ok" and len(generations) != cell["num_prompts"]:
        raise ResultsError(
            f"Expected {cell['num_prompts']} generations in cell {cell['cell_id']}, got {len(generations)}: "
            "write a row for a failed prompt too (finish_reason 'error')."
        )


def _parquet_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())
