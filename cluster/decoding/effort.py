"""The drafter's knob: how much denoising a draft block gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Reveal = Literal["quota", "threshold", "left_to_right"]
REVEAL_RULES: tuple[str, ...] = get_args(Reveal)


@dataclass(frozen=True)
class Effort:
    """How a block is drafted.

    Attributes:
        block: drafted tokens per block, K (the anchor is not counted).
        passes: denoising passes. For ``quota`` and ``left_to_right`` exactly so many (fewer only if the block is shorter);
            for ``threshold`` the most that are spent, the last one revealing whatever is left. 1 is the published
            one-pass baseline.
        reveal: which masked positions a pass reveals.
            ``quota``: the most confident, an equal share each pass (arXiv 2502.09992).
            ``threshold``: every position at least as confident as ``value``, and always the top one (arXiv 2505.22618).
            ``left_to_right``: the next ones in order, an equal share each pass; verification rewards prefixes.
        value: the threshold in [0, 1] for ``threshold``; None for the other rules.
    """

    block: int = 8
    passes: int = 1
    reveal: Reveal = "quota"
    value: float | None = None

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ValueError(f"Expected block >= 1, got {self.block}; to decode without drafts use effort None")
        if not 1 <= self.passes <= self.block:
            raise ValueError(f"Expected 1 <= passes <= block ({self.block}), got {self.passes}")
        if self.reveal not in REVEAL_RULES:
            raise ValueError(f"Expected reveal to be one of {', '.join(REVEAL_RULES)}, got {self.reveal!r}")
        if self.reveal == "threshold" and (self.value is None or not 0.0 <= self.value <= 1.0):
            raise ValueError(f"Expected a confidence in [0, 1] as value of reveal 'threshold', got {self.value}")
        if self.reveal != "threshold" and self.value is not None:
            raise ValueError(f"Expected no value for reveal {self.reveal!r}, got {self.value}; leave it out")
