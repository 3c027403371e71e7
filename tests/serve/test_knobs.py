"""Fixed knobs per request, over the server's defaults."""

import pytest

from cluster.decoding import LOSSLESS, Effort, Leniency
from serve.knobs import Knobs
from serve.protocol import KnobFields

DEFAULTS = Knobs(Effort(7, 2, "threshold", 0.9))


def override(**fields: object) -> Knobs:
    return DEFAULTS.override(KnobFields.model_validate(fields), max_block=8)


def test_nothing_named_changes_nothing() -> None:
    assert DEFAULTS.override(None, 8) == override() == override(top_k=3) == DEFAULTS


def test_what_is_named_replaces_the_default() -> None:
    assert override(block=4, passes=3, value=0.5).effort == Effort(4, 3, "threshold", 0.5)
    assert override(leniency_value=2.0) == Knobs(DEFAULTS.effort, Leniency("margin", 2.0))
    assert override(leniency_rule="match").leniency == Leniency("match")


def test_another_reveal_rule_drops_the_default_rules_value() -> None:
    assert override(reveal="quota").effort == Effort(7, 2, "quota")


def test_a_shorter_block_needs_no_more_passes_than_tokens() -> None:
    assert override(block=1).effort == Effort(1, 1, "threshold", 0.9)


def test_block_zero_is_plain_decoding() -> None:
    assert override(block=0) == Knobs(None, LOSSLESS)


def test_drafting_can_be_asked_of_a_server_that_decodes_plainly_by_default() -> None:
    assert Knobs(None).override(KnobFields(passes=2), 8).effort == Effort(8, 2)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"block": 9}, "at most 8 tokens"),
        ({"block": 0, "passes": 2}, "block 0"),
        ({"block": 2, "passes": 3}, "passes <= block"),
        ({"reveal": "threshold"}, "confidence in"),
        ({"reveal": "quota", "value": 0.5}, "no value"),
        ({"leniency_rule": "match", "leniency_value": 1.0}, "no knob"),
        ({"leniency_rule": "hope"}, "leniency rule among"),
    ],
)
def test_what_is_no_operating_point_is_refused(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        override(**fields)
