"""Names of operating points: a key that is equal for equal knobs, and a label a person reads."""

from collections.abc import Hashable
from typing import Any

import pandas as pd

from analysis.schema import POINT_COLUMNS


def point_keys(points: pd.DataFrame) -> list[str]:
    """A text per row that is the same for the same knobs."""
    return ["|".join("" if pd.isna(v) else str(v) for v in row) for row in points[list(POINT_COLUMNS)].to_numpy()]


def point_labels(points: pd.DataFrame, leniency: bool = True) -> list[str]:
    """A short name per row: passes, leniency unless told not to, block and reveal rule where they vary."""
    drafted = points[points["decoding"] == "speculative"]
    vary = {name for name in POINT_COLUMNS if drafted[name].nunique(dropna=False) > 1}
    return [_label(row, vary, leniency) for row in points.to_dict("records")]


def _label(row: dict[Hashable, Any], vary: set[str], leniency: bool) -> str:
    if row["decoding"] == "ar":
        return "AR"
    passes = f"{row['effort_passes']} pass" + ("" if row["effort_passes"] == 1 else "es")
    parts = [f"block {row['effort_block']}"] if "effort_block" in vary else []
    parts.append(passes)
    if vary & {"effort_reveal", "effort_value"}:
        value = row["effort_value"]
        parts.append(f"{row['effort_reveal']}" + ("" if pd.isna(value) else f" {value:g}"))
    if leniency:
        value = row["leniency_value"]
        parts.append(f"{row['leniency_rule']}" + ("" if pd.isna(value) else f" {value:g}"))
    return ", ".join(parts)
