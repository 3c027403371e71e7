"""Where the time goes: milliseconds per token in the drafter, in the verifier, and outside both."""

from dataclasses import dataclass

import numpy as np

from analysis.labels import point_labels
from analysis.samples import TaskSample


@dataclass(frozen=True)
class TimeRow:
    """One operating point; all times in ms per emitted token."""

    label: str
    draft: float
    verify: float
    other: float

    @property
    def total(self) -> float:
        """Time per token; AR decoding's is all verifier."""
        return self.draft + self.verify + self.other


def time_rows(sample: TaskSample) -> list[TimeRow]:
    """AR decoding, then the lossless points; points whose times were not measured are left out."""
    full = np.ones((1, len(sample.prompts)))
    total, draft, verify = (
        1000 * sample.ratio(name, "tokens", full)[0] for name in ("seconds", "draft_seconds", "verify_seconds")
    )
    labels = point_labels(sample.points, leniency=False)
    rows = [TimeRow(labels[0], 0.0, float(total[0]), 0.0)]
    for i in np.flatnonzero(sample.points["lossless"].to_numpy(dtype=bool)):
        if i > 0 and np.isfinite(total[i]) and verify[i] > 0:
            other = max(0.0, float(total[i] - draft[i] - verify[i]))
            rows.append(TimeRow(labels[i], float(draft[i]), float(verify[i]), other))
    return rows
