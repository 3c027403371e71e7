"""The verifier's knob: how far it bends when it accepts a drafted token.

A rule decides, from the verifier's perturbed scores alone or from its and the drafter's laws, which drafted tokens are
accepted. The rules here need only the *required margin* of each drafted token (see :mod:`cluster.decoding.verify`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

AcceptRule = Callable[[Tensor, float], Tensor]
"""``accept(required_margin [K], value) -> accepted [K] bool``."""


def _match(required_margin: Tensor, _: float) -> Tensor:
    return required_margin == 0.0


def _margin(required_margin: Tensor, value: float) -> Tensor:
    return required_margin <= value


@dataclass(frozen=True)
class RuleInfo:
    """What a rule is, for configs, docs and checks: its decision, its formula, and its lossless knob value."""

    accept: AcceptRule
    formula: str
    lossless_value: float


RULES: dict[str, RuleInfo] = {
    "match": RuleInfo(_match, "D is the verifier's own sample; the knob is not used", 0.0),
    "margin": RuleInfo(_margin, "log p(D) + g(D) >= max_x(log p(x) + g(x)) - value, value in nats", 0.0),
}


@dataclass(frozen=True)
class Leniency:
    """An acceptance rule and its knob.

    Attributes:
        rule: a name in :data:`RULES`. ``margin`` guarantees, for any drafter, that each emitted token's log-probability
            ratio to the verifier's law stays within ±value nats (±n·value over n tokens).
        value: the knob, 0 = lossless for both rules here; always 0 for ``match``.
    """

    rule: str = "margin"
    value: float = 0.0

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"Expected a leniency rule among {', '.join(sorted(RULES))}, got {self.rule!r}")
        if not (self.value >= 0.0 and math.isfinite(self.value)):
            raise ValueError(f"Expected a finite leniency value >= 0 nats, got {self.value}")
        if self.rule == "match" and self.value != 0.0:
            raise ValueError(f"Expected value 0 for rule 'match' (it has no knob), got {self.value}; use rule 'margin'")

    @property
    def lossless(self) -> bool:
        return self.value == RULES[self.rule].lossless_value


LOSSLESS = Leniency()
