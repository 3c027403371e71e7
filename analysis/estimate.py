"""A number with its interval."""

from typing import NamedTuple


class Estimate(NamedTuple):
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float
