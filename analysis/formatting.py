"""Numbers as a person reads them: percent where a quality is a share, × for speedups, intervals beside values."""

from collections.abc import Iterable

from analysis.estimate import Estimate

#: How each speed axis is named and written.
SPEED_NAMES = {
    "speedup": "Speedup over AR decoding (tokens/s)",
    "answer_speedup": "Speedup over AR decoding (answers/s)",
    "tokens_per_s": "Tokens per second",
    "answers_per_s": "Answers per second",
}


def is_share(values: Iterable[float]) -> bool:
    """Whether every value lies in [0, 1], so that percent is the natural unit."""
    return all(0 <= value <= 1 for value in values)


def quality_text(value: float, share: bool) -> str:
    """A quality: `92.5 %` where it is a share, else three digits."""
    return f"{value:.1%}".replace("%", " %") if share else f"{value:.3g}"


def difference_text(value: float, share: bool) -> str:
    """A difference of qualities: percentage points where they are shares."""
    return f"{_signed(100 * value, '.1f')} pp" if share else _signed(value, ".3g")


def speed_text(value: float, axis: str) -> str:
    """A speed with its unit: `2.31×` on relative axes."""
    return f"{value:.2f}×" if axis.endswith("speedup") else f"{value:.3g}"


def change_text(value: float) -> str:
    """A relative change: `+3.4 %`, with a true minus sign."""
    return f"{_signed(100 * value, '.1f')} %"


def interval_text(estimate: Estimate) -> str:
    """A relative change's interval: `−0.4 % to +1.2 %`."""
    return f"{change_text(estimate.low)} to {change_text(estimate.high)}"


def _signed(value: float, form: str) -> str:
    """With its sign, a true minus; what rounds to zero has none."""
    text = format(value, form)
    if float(text) == 0:
        return text.removeprefix("-")
    return text.replace("-", "−") if value < 0 else f"+{text}"
