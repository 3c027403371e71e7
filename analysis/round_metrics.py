"""Acceptance metrics over the accepted drafted tokens of each round (names as in the field standard).

`accepted` lists, per round, how many drafted tokens were accepted; the bonus token is not among them.
Without rounds there is nothing to measure and every function returns None, never 0 or 1.0.

    golden trace, K = 3, accepted [3, 0, 2]: draft acceptance rate 5/9, mean acceptance length 8/3,
    per-position acceptance [2/3, 2/3, 1/3], histogram [1, 0, 1, 1]
"""

from collections.abc import Sequence
from typing import Any

from analysis.errors import ResultsError


def draft_acceptance_rate(accepted: Sequence[int], num_draft_tokens: int) -> float | None:
    """Accepted / proposed draft tokens; the bonus token is in neither. None where nothing was proposed."""
    return sum(accepted) / num_draft_tokens if num_draft_tokens else None


def mean_acceptance_length(accepted: Sequence[int]) -> float | None:
    """1 + accepted / rounds, in tokens: what a round commits on average, its bonus token counted."""
    return 1 + sum(accepted) / len(accepted) if accepted else None


def mean_acceptance_length_per_request(requests: Sequence[Sequence[int]]) -> float | None:
    """Mean over requests of their own mean acceptance length; requests without rounds are left out."""
    lengths = [length for accepted in requests if (length := mean_acceptance_length(accepted)) is not None]
    return sum(lengths) / len(lengths) if lengths else None


def acceptance_histogram(accepted: Sequence[int], block: int) -> list[int] | None:
    """Index j: rounds that accepted exactly j drafted tokens; length `block` + 1.

    Raises:
        ResultsError: a count is outside 0 ... block.
    """
    _check(accepted, block)
    return [list(accepted).count(j) for j in range(block + 1)] if accepted else None


def per_position_acceptance(accepted: Sequence[int], block: int) -> list[float] | None:
    """Unconditional: rounds that accepted position i / all rounds, i = 1 ... block."""
    _check(accepted, block)
    return _reached(accepted, block)[1:] if accepted else None


def per_position_acceptance_conditional(accepted: Sequence[int], block: int) -> list[float | None] | None:
    """P(position i accepted given i - 1 accepted); None at positions no round ever got to."""
    _check(accepted, block)
    if not accepted:
        return None
    reached = _reached(accepted, block)
    return [reached[i] / reached[i - 1] if reached[i - 1] else None for i in range(1, block + 1)]


def acceptance_columns(
    requests: Sequence[Sequence[int]], block: int, num_draft_tokens: int | None = None
) -> dict[str, Any]:
    """Every acceptance column of a cell from its requests' accepted counts.

    Args:
        requests: per request, the accepted counts of its rounds.
        block: drafted tokens per full block, K.
        num_draft_tokens: proposed tokens in all; without it every round proposed `block`.
    """
    flat = [count for accepted in requests for count in accepted]
    proposed = len(flat) * block if num_draft_tokens is None else num_draft_tokens
    return {
        "num_spec_rounds": len(flat) or None,
        "num_draft_tokens": proposed if flat else None,
        "num_accepted_draft_tokens": sum(flat) if flat else None,
        "draft_acceptance_rate": draft_acceptance_rate(flat, proposed),
        "mean_acceptance_length_token_weighted": mean_acceptance_length(flat),
        "mean_acceptance_length_per_request": mean_acceptance_length_per_request(requests),
        "acceptance_histogram": acceptance_histogram(flat, block),
        "per_position_acceptance": per_position_acceptance(flat, block),
        "per_position_acceptance_conditional": per_position_acceptance_conditional(flat, block),
    }


def _reached(accepted: Sequence[int], block: int) -> list[float]:
    """Share of rounds that accepted at least i tokens, i = 0 ... block."""
    return [sum(count >= i for count in accepted) / len(accepted) for i in range(block + 1)]


def _check(accepted: Sequence[int], block: int) -> None:
    if bad := [count for count in accepted if not 0 <= count <= block]:
        raise ResultsError(
            f"Expected accepted counts between 0 and the block length {block}, got {bad[0]}: "
            "the bonus token is not an accepted draft token."
        )
