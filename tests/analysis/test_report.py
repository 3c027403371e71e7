"""The report: complete, self-contained, escaped, and honest about what is missing."""

import html
import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import load_cells, load_generations, write_cell
from analysis.effort import effort_rows, effort_sentence
from analysis.examples import mark_difference, task_examples
from analysis.operating_points import operating_points
from analysis.report import main, write_report
from analysis.report_content import build_sections
from analysis.sample_building import build_sample
from analysis.time_split import time_rows
from tests.analysis.synthetic import World, cell_row

WORLD = World(tasks=("json", "chat"), prompts=10, length_gain=0.3, pass_cost=0.1)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("results")
    WORLD.write(directory)
    failed = cell_row(task="json", repeat=0, passes=4, margin=16.0, num_prompts=10, status="failed",
                      error="<out of memory>")  # fmt: skip
    write_cell(directory, failed, [])
    return directory


@pytest.fixture(scope="module")
def page(results: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("out")
    write_report(results, out, n_bootstrap=100)
    assert (out / "frontier.png").read_bytes().startswith(b"\x89PNG")
    assert not list(results.glob("report*"))
    return (out / "report.html").read_text()


class TestPage:
    def test_needs_no_network(self, page: str) -> None:
        assert not re.search(r"(src|href)\s*=|https?://|@import|url\(", page)

    def test_tags_are_balanced(self, page: str) -> None:
        class Checker(HTMLParser):
            stack: list[str] = []  # noqa: RUF012

            def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
                if tag not in ("meta", "path", "circle"):
                    self.stack.append(tag)

            def handle_endtag(self, tag: str) -> None:
                assert self.stack.pop() == tag or tag in ("path", "circle")

        checker = Checker()
        checker.feed(re.sub(r"<(path|circle)([^>]*)/>", r"<\1\2>", page))
        assert checker.stack == []

    @pytest.mark.parametrize(
        "part",
        ["Mean over tasks", "json", "chat", "held-out hypervolume", "1 pass, margin 0", "AR decoding", "lossless",
         "Does a second pass pay?", "Where the time goes", "What the answers look like", "Failed cells", "bfloat16",
         "SmolLM2-135M-Instruct", "0.1.0+test", "exact match", "&lt;out of memory&gt;", "How to read this"],
    )  # fmt: skip
    def test_shows(self, page: str, part: str) -> None:
        assert part in page

    def test_every_point_has_its_details(self, page: str) -> None:
        assert page.count('class="pt ') == page.count("<title>speed") + page.count("\nspeed ") == 3 * 10

    def test_model_text_is_escaped(self, page: str) -> None:
        assert "<out of memory>" not in page


class TestCommandLine:
    def test_prints_places_and_verdict(self, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        main([str(results), "--out", str(tmp_path)])
        report, picture, verdict = capsys.readouterr().out.strip().splitlines()
        assert (Path(report.split()[-1]).name, Path(picture.split()[-1]).name) == ("report.html", "frontier.png")
        assert verdict.startswith("Verdict: ")

    def test_missing_directory_is_one_sentence(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([str(tmp_path / "nowhere")]) == 1
        assert capsys.readouterr().err.startswith("Expected a results directory")

    def test_only_failed_cells(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        cell = cell_row(task="json", repeat=0, passes=1, margin=0.0, num_prompts=1, status="failed", error="no")
        write_cell(tmp_path, cell, [])
        assert main([str(tmp_path)]) == 1
        assert capsys.readouterr().err.startswith("Expected finished speculative cells, got 1 failed (the first: no)")


class TestSections:
    def test_one_per_condition(self, results: Path) -> None:
        cells, generations = load_cells(results), load_generations(results)
        chosen = cells["leniency_value"].isin([2]) | (cells["decoding"] == "ar")
        warm = cells[chosen].assign(temperature=0.7)
        sections = build_sections(pd.concat([cells[~chosen], warm]), generations, n_bootstrap=50)
        assert [section.name for section in sections] == ["temperature 0", "temperature 0.7"]

    def test_a_task_that_cannot_be_compared_is_named(self, results: Path) -> None:
        cells, generations = load_cells(results), load_generations(results)
        cut = cells[~((cells["task"] == "chat") & (cells["effort_passes"] == 1))]
        (section,) = build_sections(cut, generations, n_bootstrap=50)
        assert [comparison.task for comparison in section.comparisons] == ["json"]
        assert [problem.split(":")[0] for problem in section.problems] == ["Mean over tasks", "chat"]


class TestEffort:
    def sentence(self, world: World, directory: Path) -> str:
        world.write(directory)
        return effort_sentence(effort_rows(build_sample(load_cells(directory), load_generations(directory), "json")))

    def test_a_pass_that_pays(self, tmp_path: Path) -> None:
        assert "it pays: +" in self.sentence(World(length_gain=0.8, pass_cost=0.02), tmp_path)

    def test_a_pass_that_does_not(self, tmp_path: Path) -> None:
        text = self.sentence(World(pass_cost=0.3, prompts=60), tmp_path)
        assert "no further pass pays: at best −" in text

    def test_change_is_against_one_pass(self, results: Path) -> None:
        one, two, four = effort_rows(build_sample(load_cells(results), load_generations(results), "json"))
        assert (one.label, two.label, four.passes) == ("1 pass", "2 passes", 4)
        assert (one.speed_change, one.pays) == (None, "baseline")
        assert two.length_change is not None
        assert two.length_change.value == pytest.approx(two.length.value / one.length.value - 1)


def test_time_adds_up(results: Path) -> None:
    sample = build_sample(load_cells(results), load_generations(results), "json")
    ar, one, *_ = time_rows(sample)
    assert (ar.label, ar.draft, one.label) == ("AR", 0.0, "1 pass")
    assert one.total == pytest.approx(1000 * sample.sums["seconds"][1].sum() / sample.sums["tokens"][1].sum())


class TestExamples:
    def test_lossless_first_then_the_joint_frontier(self, results: Path) -> None:
        cells, generations = load_cells(results), load_generations(results)
        points = operating_points(cells, generations, "json", n_bootstrap=50)
        for example in task_examples(cells, generations, "json", points):
            first, *others = example.texts
            assert (first.note, first.same) == ("lossless", True)
            assert 1 <= len(others) <= 3
            assert all(text.same == ("<mark" not in text.html) for text in example.texts)

    def test_marks_what_differs(self) -> None:
        assert mark_difference("a red cat", "a blue cat") == "a <mark>blue</mark> cat"

    def test_marks_what_is_left_out(self) -> None:
        assert mark_difference("a red, big cat", "a red cat") == (
            'a red<mark class="gap" title="left out: , big">…</mark> cat'
        )

    @given(st.text(alphabet='ab <>&"\n', max_size=30), st.text(alphabet='ab <>&"\n', max_size=30))
    def test_text_survives_and_is_escaped(self, reference: str, text: str) -> None:
        marked = re.sub(r'<mark class="gap".*?</mark>', "", str(mark_difference(reference, text)), flags=re.DOTALL)
        assert html.unescape(re.sub(r"</?mark>", "", marked)) == text
