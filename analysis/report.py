"""The report of an experiment: one self-contained page, one picture, one sentence.

    python -m analysis.report DIR [--out DIR]

Writes `report.html` (opens from disk, needs no network) and `frontier.png` (of the first condition) into the
results directory, or into `--out`.
"""

import argparse
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import jinja2

from analysis.atomic import write_atomic
from analysis.chart import marks, pass_ranks
from analysis.errors import ResultsError
from analysis.formatting import change_text, difference_text, interval_text, is_share, quality_text, speed_text
from analysis.frontier import hypervolume
from analysis.operating_points import failed_cells
from analysis.plots import frontier_png
from analysis.reader import load_cells, load_environment, load_generations
from analysis.report_content import Section, build_sections
from analysis.svg import frontier_svg, marker_svg, star_svg


def write_report(results_dir: Path, out_dir: Path, n_bootstrap: int = 1000) -> list[Section]:
    """Write `report.html` and `frontier.png` of the results into `out_dir`; returns what they say.

    Raises:
        ResultsError: the results cannot be read, or hold nothing to compare.
    """
    cells, generations = load_cells(results_dir), load_generations(results_dir)
    sections = build_sections(cells, generations, n_bootstrap)
    environment = load_environment(results_dir)
    page = _template().render(
        title=environment.get("experiment") or cells["experiment"].iloc[0],
        sections=sections,
        failed=failed_cells(cells, sorted(cells["task"].unique())).to_dict("records"),
        command=" ".join(_argv(environment)),
    )
    write_atomic(out_dir / "report.html", page.encode())
    first = sections[0]
    title = "\n".join(textwrap.wrap(first.headline.verdict.sentence, 92))
    write_atomic(out_dir / "frontier.png", frontier_png(first.comparisons, title, first.caption))
    return sections


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m analysis.report", description="Write the report of results.")
    parser.add_argument("results", type=Path, help="results directory of an experiment")
    parser.add_argument("--out", type=Path, help="where to write (default: the results directory)")
    args = parser.parse_args(argv)
    out = args.out or args.results
    try:
        sections = write_report(args.results, out)
    except ResultsError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Report:  {(out / 'report.html').resolve()}")
    print(f"Picture: {(out / 'frontier.png').resolve()}")
    for section in sections:
        name = f" ({section.name})" if section.name else ""
        print(f"Verdict{name}: {section.headline.verdict.sentence}")
    return 0


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("analysis", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        frontier_svg=frontier_svg, marker_svg=marker_svg, star_svg=star_svg, marks=marks, is_share=is_share,
        pass_ranks=pass_ranks, hypervolume=hypervolume,
    )  # fmt: skip
    for name, text in (("change", change_text), ("interval", interval_text), ("quality", quality_text),
                       ("speed", speed_text), ("difference", difference_text), ("unbroken", str)):  # fmt: skip
        environment.filters[name] = _unbroken(text)
    return environment.get_template("report.html.j2")


def _unbroken(text: Callable[..., str]) -> Callable[..., str]:
    """`text` with units that stay on the line of their number."""

    def wrapped(*args: object) -> str:
        return re.sub(r"(?<=\d) (?=%|pp|×)", "\N{NO-BREAK SPACE}", text(*args))

    return wrapped


def _argv(environment: dict[str, list[dict[str, object]]]) -> list[str]:
    """The command of the run that claimed the directory last."""
    runs = environment.get("runs") or [{}]
    argv = runs[-1].get("argv")
    return [str(part) for part in argv] if isinstance(argv, list) else []


if __name__ == "__main__":
    sys.exit(main())
