"""Effort, Leniency, Sampling: what they refuse, in one clear sentence."""

from typing import Any

import pytest

from cluster.decoding import LOSSLESS, Effort, Leniency, Sampling, StopRules


class TestEffort:
    @pytest.mark.parametrize(
        ("knobs", "message"),
        [
            ({"block": 0}, "Expected block >= 1, got 0; to decode without drafts use effort None"),
            ({"block": 4, "passes": 0}, r"Expected 1 <= passes <= block \(4\), got 0"),
            ({"block": 4, "passes": 5}, r"Expected 1 <= passes <= block \(4\), got 5"),
            ({"reveal": "best"}, "Expected reveal to be one of quota, threshold, left_to_right, got 'best'"),
            ({"reveal": "threshold"}, r"Expected a confidence in \[0, 1\] as value of reveal 'threshold', got None"),
            ({"reveal": "threshold", "value": 1.5}, r"Expected a confidence in \[0, 1\] .*, got 1.5"),
            ({"reveal": "threshold", "value": float("nan")}, "Expected a confidence .*, got nan"),
            ({"value": 0.5}, "Expected no value for reveal 'quota', got 0.5; leave it out"),
            ({"reveal": "left_to_right", "value": 0.0}, "Expected no value for reveal 'left_to_right', got 0.0"),
        ],
    )
    def test_refuses(self, knobs: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Effort(**knobs)

    def test_defaults_to_the_published_one_pass(self) -> None:
        assert Effort() == Effort(block=8, passes=1, reveal="quota", value=None)


class TestLeniency:
    @pytest.mark.parametrize(
        ("knobs", "message"),
        [
            ({"rule": "kind"}, "Expected a leniency rule among margin, match, got 'kind'"),
            ({"value": -0.1}, "Expected a finite leniency value >= 0 nats, got -0.1"),
            ({"value": float("nan")}, "Expected a finite leniency value >= 0 nats, got nan"),
            ({"value": float("inf")}, "Expected a finite leniency value >= 0 nats, got inf"),
            ({"rule": "match", "value": 1.0}, r"Expected value 0 for rule 'match' .* got 1.0; use rule 'margin'"),
        ],
    )
    def test_refuses(self, knobs: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Leniency(**knobs)

    @pytest.mark.parametrize(
        ("leniency", "lossless"),
        [
            (LOSSLESS, True),
            (Leniency("match"), True),
            (Leniency("margin", 0.0), True),
            (Leniency("margin", 1e-9), False),
        ],
    )
    def test_knows_whether_it_is_lossless(self, leniency: Leniency, lossless: bool) -> None:
        assert leniency.lossless is lossless


class TestSampling:
    @pytest.mark.parametrize(
        ("knobs", "message"),
        [
            ({"temperature": -1.0}, "Expected temperature >= 0, got -1.0; use 0 for greedy decoding"),
            ({"temperature": float("nan")}, "Expected temperature >= 0, got nan"),
            ({"temperature": float("inf")}, "Expected temperature >= 0, got inf"),
            ({"top_k": 0}, "Expected top_k >= 1 or None, got 0; leave it out to keep all tokens"),
            ({"top_p": 0.0}, "Expected 0 < top_p <= 1 or None, got 0.0; leave it out to keep all tokens"),
            ({"top_p": 1.01}, "Expected 0 < top_p <= 1 or None, got 1.01"),
            ({"top_p": float("nan")}, "Expected 0 < top_p <= 1 or None, got nan"),
            ({"seed": 2**63}, "Expected a 64-bit signed seed, got 9223372036854775808"),
            ({"seed": -(2**63) - 1}, "Expected a 64-bit signed seed, got -9223372036854775809"),
        ],
    )
    def test_refuses(self, knobs: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Sampling(**knobs)

    def test_takes_the_extreme_seeds(self) -> None:
        assert [Sampling(seed=s).seed for s in (-(2**63), 2**63 - 1)] == [-(2**63), 2**63 - 1]


class TestStopRules:
    def test_refuses_no_tokens(self) -> None:
        with pytest.raises(ValueError, match="Expected max_tokens >= 1, got 0"):
            StopRules(0)

    def test_refuses_an_empty_stop_string(self) -> None:
        with pytest.raises(ValueError, match="Expected non-empty stop strings, got an empty one"):
            StopRules(5, stop_strings=("x", ""))
