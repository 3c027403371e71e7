"""The sentence that says whether joint variation won, and the rule behind it."""

from typing import Literal, NamedTuple

from analysis.estimate import Estimate
from analysis.formatting import change_text, interval_text

#: A gain below this share of the one-pass hypervolume is no practical difference.
MIN_GAIN = 0.01

Outcome = Literal["wins", "no difference", "loses", "undecided", "not compared"]


class Verdict(NamedTuple):
    """What the interval says, and the sentence with the numbers."""

    outcome: Outcome
    sentence: str


def decide(gain: Estimate, joint: float, one_pass: float, has_more_passes: bool, prompts: int, repeats: int) -> Verdict:
    """The verdict on a held-out relative gain in hypervolume.

    "wins": the interval lies above 0 and the gain is at least `MIN_GAIN`. "loses": it lies below 0 by as
    much. "no difference": it excludes gains of `MIN_GAIN` or more (or the gain is real but smaller).
    Otherwise "undecided": larger gains are neither shown nor excluded.
    """
    if not has_more_passes:
        return Verdict("not compared", "Nothing to compare: no operating point has more than one pass.")
    outcome = _outcome(gain)
    runs = f"{prompts} prompts, {repeats} repeat{'s' if repeats != 1 else ''}"
    numbers = (
        f"held-out hypervolume {joint:.3f} against {one_pass:.3f} for one pass, {change_text(gain.value)} "
        f"(95 % interval {interval_text(gain)}; {runs})"
    )
    return Verdict(outcome, _SENTENCES[outcome].format(numbers=numbers, most=change_text(gain.high).removeprefix("+")))


def _outcome(gain: Estimate) -> Outcome:
    if gain.low > 0 and gain.value >= MIN_GAIN:
        return "wins"
    if gain.high < 0 and gain.value <= -MIN_GAIN:
        return "loses"
    if gain.high < MIN_GAIN or gain.low > 0:
        return "no difference"
    return "undecided"


_SENTENCES: dict[Outcome, str] = {
    "wins": "Joint variation wins: {numbers}.",
    "loses": "One pass wins: the extra choices do not hold up on prompts they were not chosen on; {numbers}.",
    "no difference": "Joint variation makes no measurable difference: {numbers}.",
    "undecided": "Joint variation makes no measurable difference here: {numbers}; a gain of up to {most} "
    "is not excluded, so more prompts or repeats would tell.",
}
