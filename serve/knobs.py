"""The operating point of a request: both knobs, fixed when the request is admitted."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cluster.decoding import LOSSLESS, Effort, Leniency
from serve.protocol import KnobFields


@dataclass(frozen=True)
class Knobs:
    """Effort (None decodes plainly, without drafts) and leniency."""

    effort: Effort | None
    leniency: Leniency = LOSSLESS

    def override(self, wanted: KnobFields | None, max_block: int) -> Knobs:
        """These knobs with the ones a request names put in their place.

        Args:
            wanted: what the request says; None changes nothing.
            max_block: the longest block the drafter drafts, 0 where there is no drafter.

        Raises:
            ValueError: the combination is not an operating point of this pair.
        """
        if wanted is None:
            return self
        return Knobs(self._effort(wanted, max_block), self._leniency(wanted))

    def _effort(self, wanted: KnobFields, max_block: int) -> Effort | None:
        named = wanted.model_dump(include={"block", "passes", "reveal", "value"}, exclude_none=True)
        if not named:
            return self.effort
        base: dict[str, Any] = asdict(self.effort) if self.effort else {"block": max_block}
        if "reveal" in named:
            base["value"] = None  # the default's value belongs to the default's rule
        chosen = base | named
        if chosen["block"] == 0 and len(named) == 1:
            return None
        if chosen["block"] == 0:
            raise ValueError(f"Expected no other effort knob with block 0 (plain decoding), got {sorted(named)}")
        if chosen["block"] > max_block:
            raise ValueError(
                f"Expected a block of at most {max_block} tokens (what this server's drafter drafts), got {chosen['block']}"
            )
        if "passes" not in named:
            chosen["passes"] = min(chosen.get("passes", 1), chosen["block"])
        return Effort(**chosen)

    def _leniency(self, wanted: KnobFields) -> Leniency:
        if wanted.leniency_rule is None and wanted.leniency_value is None:
            return self.leniency
        rule = wanted.leniency_rule or self.leniency.rule
        return Leniency(rule, wanted.leniency_value or 0.0)
