"""Joint against one pass: wins where more passes truly win, and not where nothing differs."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import Comparison, Estimate, ResultsError, hypervolume, joint_vs_one_pass, load_cells, load_generations
from analysis import operating_points as list_points
from analysis.held_out import held_out_areas
from analysis.resampling import Draws
from analysis.sample_building import build_sample
from analysis.verdict import decide
from tests.analysis.synthetic import World

Frames = tuple[pd.DataFrame, pd.DataFrame]
Measure = Callable[[World], Frames]


@pytest.fixture
def measure(tmp_path: Path) -> Measure:
    """Write a world and load it."""

    def run(world: World) -> Frames:
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        world.write(directory)
        return load_cells(directory), load_generations(directory)

    return run


def compare(frames: Frames, task: str | None = None, axis: str = "speedup") -> Comparison:
    return joint_vs_one_pass(*frames, task, axis=axis, n_bootstrap=200)


class TestTruth:
    @pytest.mark.parametrize("repeats", [1, 3])
    def test_no_effect_is_not_a_win(self, measure: Measure, repeats: int) -> None:
        """Over worlds where passes change nothing: no win (95 % intervals allow one in forty), and no bias."""
        results = [compare(measure(World(run_noise=0.03, repeats=repeats, seed=seed))) for seed in range(10, 14)]
        assert {result.verdict.outcome for result in results} <= {"no difference", "undecided"}
        assert all("no measurable difference" in result.verdict.sentence for result in results)
        assert abs(np.mean([result.gain.value for result in results])) < 0.015

    def test_in_sample_such_data_would_have_won(self, measure: Measure) -> None:
        """Why the verdict is held out: the same data, compared on itself, shows a gain."""
        result = compare(measure(World(run_noise=0.03, seed=1)))
        assert result.joint.value > 1.01 * result.one_pass.value

    @pytest.mark.parametrize("repeats", [1, 3])
    def test_a_true_gain_wins(self, measure: Measure, repeats: int) -> None:
        frames = measure(World(length_gain=0.6, pass_cost=0.03, run_noise=0.02, repeats=repeats))
        result = compare(frames)
        assert result.verdict.outcome == "wins"
        assert result.gain.low > 0.01
        assert result.difference.value == pytest.approx(result.held_out_joint - result.held_out_one_pass)

    def test_costly_passes_bring_nothing(self, measure: Measure) -> None:
        result = compare(measure(World(length_gain=0.05, pass_cost=0.4)))
        assert result.verdict.outcome == "no difference"
        assert set(result.points.loc[result.points["on_joint"], "effort_passes"].dropna()) == {1}

    def test_a_small_sample_is_undecided(self, measure: Measure) -> None:
        result = compare(measure(World(run_noise=0.08, prompts=8)))
        assert result.verdict.outcome == "undecided"
        assert "is not excluded" in result.verdict.sentence

    def test_only_one_pass_is_not_compared(self, measure: Measure) -> None:
        result = compare(measure(World(passes=(1,))))
        assert result.verdict.outcome == "not compared"
        assert result.gain.value == 0


class TestPooling:
    def test_the_mean_over_tasks(self, measure: Measure) -> None:
        frames = measure(World(tasks=("json", "chat"), base_length={"json": 4.0, "chat": 1.5}))
        pooled, json, chat = (compare(frames, task).points for task in (None, "json", "chat"))
        assert pooled["label"].tolist() == json["label"].tolist()
        for name in ("speed", "quality"):
            assert pooled[name].to_numpy() == pytest.approx((json[name] + chat[name]).to_numpy() / 2)

    def test_points_missing_in_a_task_are_listed(self, measure: Measure) -> None:
        cells, generations = measure(World(tasks=("json", "chat")))
        cut = cells[~((cells["task"] == "chat") & (cells["leniency_value"] == 8) & (cells["effort_passes"] == 2))]
        result = compare((cut, generations))
        assert "2 passes, margin 8" not in result.points["label"].tolist()
        assert result.excluded.to_dict("records") == [
            {"task": "json", "label": "2 passes, margin 8", "reason": "not measured on every task"}
        ]


class TestPoints:
    def test_speed_is_the_ratio_of_sums(self, measure: Measure) -> None:
        cells, generations = measure(World(ar_every=3))
        points = list_points(cells, generations, "json", n_bootstrap=50)
        cell = cells[(cells["effort_passes"] == 1) & (cells["leniency_value"] == 0)].iloc[0]
        point = points[points["label"] == "1 pass, margin 0"].iloc[0]
        assert point["speed"] == pytest.approx(cell["speedup"])
        assert point["quality"] == pytest.approx(cell["quality"])
        assert point["speed_low"] < point["speed"] < point["speed_high"]

    def test_ar_is_the_reference(self, measure: Measure) -> None:
        """With references on every third prompt, AR's quality still is that of all prompts (lossless text)."""
        points = list_points(*measure(World(ar_every=3)), "json", n_bootstrap=50)
        ar, lossless = points.iloc[0], points.iloc[1]
        assert (ar["label"], ar["speed"]) == ("AR", 1.0)
        assert ar["quality"] == pytest.approx(lossless["quality"])
        assert lossless["quality_change"] == pytest.approx(0)

    @pytest.mark.parametrize("axis", ["answer_speedup", "tokens_per_s", "answers_per_s"])
    def test_other_axes(self, measure: Measure, axis: str) -> None:
        result = compare(measure(World(prompts=12)), axis=axis)
        assert result.points["speed"].notna().all()

    def test_a_cell_without_quality_is_excluded(self, measure: Measure) -> None:
        cells, generations = measure(World())
        lost = cells[(cells["effort_passes"] == 4) & (cells["leniency_value"] == 2)]["cell_id"].iloc[0]
        generations.loc[generations["cell_id"] == lost, "score"] = np.nan
        result = compare((cells, generations))
        assert result.excluded["label"].tolist() == ["4 passes, margin 2"]

    def test_failed_cells_are_excluded_with_their_reason(self, measure: Measure) -> None:
        cells, generations = measure(World())
        cells.loc[cells["leniency_value"] == 8, ["status", "error"]] = ["failed", "out of memory"]
        assert set(compare((cells, generations)).excluded["reason"]) == {"out of memory"}


class TestRunNoise:
    def test_read_off_repeats(self, measure: Measure) -> None:
        noise, source = compare(measure(World(run_noise=0.05, repeats=4))).run_noise
        assert source == "spread between repeats"
        assert noise == pytest.approx(0.05, rel=0.35)

    def test_read_off_the_verifier_without_repeats(self, measure: Measure) -> None:
        noise, source = compare(measure(World(run_noise=0.05))).run_noise
        assert source.startswith("verifier’s time per forward")
        assert noise == pytest.approx(0.05, rel=0.5)

    def test_prefill_is_not_noise(self, measure: Measure) -> None:
        """Lenient cells need fewer forwards for the same prefill: their cost per forward differs, without noise."""
        assert compare(measure(World(run_noise=0.0))).run_noise[0] < 0.01


class TestErrors:
    def test_unknown_task_and_axis(self, measure: Measure) -> None:
        frames = measure(World(prompts=5))
        with pytest.raises(ResultsError, match="Expected a task among"):
            compare(frames, "poetry")
        with pytest.raises(ResultsError, match="Expected a speed axis among"):
            compare(frames, axis="flops")

    def test_two_conditions_are_refused(self, measure: Measure) -> None:
        cells, generations = measure(World(prompts=5))
        cells.loc[cells["leniency_value"] == 8, "temperature"] = 0.7
        with pytest.raises(ResultsError, match=r"got temperature = 0\.0, 0\.7"):
            compare((cells, generations))

    def test_no_baseline(self, measure: Measure) -> None:
        with pytest.raises(ResultsError, match="one denoising pass as the baseline"):
            compare(measure(World(passes=(2, 4), prompts=5)))

    def test_too_few_prompts(self, measure: Measure) -> None:
        with pytest.raises(ResultsError, match="at least 4 prompts"):
            compare(measure(World(prompts=3)))

    def test_no_reference(self, measure: Measure) -> None:
        cells, generations = measure(World(prompts=5))
        generations[["ar_latency_s", "ar_completion_tokens"]] = np.nan
        with pytest.raises(ResultsError, match="Expected an AR reference"):
            compare((cells, generations))


@given(st.lists(st.tuples(st.floats(0.1, 5), st.floats(0.1, 1)), min_size=1, max_size=12))
def test_rays_measure_the_hypervolume(points: list[tuple[float, float]]) -> None:
    """Choosing and measuring on the same data is the ordinary hypervolume."""
    values = np.array(points)
    draws = Draws(values[None, :, 0], values[None, :, 1])
    everything = np.ones(len(points), dtype=bool)
    area = held_out_areas((draws, draws), everything, values.max(axis=0))[0, 0]
    assert area == pytest.approx(hypervolume(values), rel=0.02)


def test_resampling_keeps_the_pairing(measure: Measure) -> None:
    """The same prompt weights reach every cell: a prompt drawn twice counts twice everywhere."""
    sample = build_sample(*measure(World(prompts=6, passes=(1,), margins=(0.0,))), "json")
    weights = np.array([[2.0, 0, 0, 0, 0, 0]])
    speed, quality = sample.measure(weights, "speedup")
    tokens, seconds = (sample.sums[name][1, 0] for name in ("tokens", "seconds"))
    ar_speed = sample.sums["ar_tokens"][1, 0] / sample.sums["ar_seconds"][1, 0]
    assert speed[0, 1] == pytest.approx(tokens / seconds / ar_speed)
    assert quality[0, 1] == sample.sums["score"][1, 0]


@pytest.mark.parametrize(
    ("gain", "outcome"),
    [
        (Estimate(0.05, 0.02, 0.08), "wins"),
        (Estimate(0.005, 0.002, 0.008), "no difference"),
        (Estimate(0.0, -0.005, 0.005), "no difference"),
        (Estimate(0.02, -0.01, 0.05), "undecided"),
        (Estimate(-0.002, -0.003, -0.001), "no difference"),
        (Estimate(-0.05, -0.08, -0.02), "loses"),
    ],
)
def test_verdicts(gain: Estimate, outcome: str) -> None:
    verdict = decide(gain, 2.1, 2.0, has_more_passes=True, prompts=40, repeats=3)
    assert verdict.outcome == outcome
    assert "2.100 against 2.000" in verdict.sentence
