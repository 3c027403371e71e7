"""`frontier.png`: the picture of a result, for a README or a slide."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from analysis.chart import Mark, limits, marks, pass_ranks, staircase
from analysis.comparison import Comparison
from analysis.formatting import SPEED_NAMES, is_share

#: Okabe and Ito's colours: told apart under every common colour vision deficiency.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_INK, _MUTED, _GRID, _JOINT = "#1b1f24", "#59636e", "#e6e8eb", "#8fa3b8"


def frontier_png(comparisons: Sequence[Comparison], title: str, caption: str) -> bytes:
    """The first comparison large, the others (one per task) in a row below it; PNG bytes.

    Args:
        comparisons: of one condition, as many as should be shown; at least one.
        title: above the picture; long lines are wrapped by the caller.
        caption: below it, small: the conditions.
    """
    first, rest = comparisons[0], comparisons[1:]
    figure = Figure(figsize=(10, 6.2 + (3.4 if rest else 0)), dpi=160, layout="constrained")
    figure.suptitle(title, x=0.012, ha="left", fontsize=11.5, color=_INK, fontweight="bold")
    figure.supxlabel(caption, x=0.012, ha="left", fontsize=8.5, color=_MUTED)
    if rest:
        grid = figure.add_gridspec(2, len(rest), height_ratios=[6.0, 3.4])
        _draw(figure.add_subplot(grid[0, :]), first, large=True)
        for column, comparison in enumerate(rest):
            _draw(figure.add_subplot(grid[1, column]), comparison, large=False)
    else:
        _draw(figure.add_subplot(), first, large=True)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _draw(axes: Axes, comparison: Comparison, large: bool) -> None:
    drawn = marks(comparison.points)
    box = limits(drawn)
    joint = staircase([mark for mark in drawn if mark.on_joint], box)
    single = staircase([mark for mark in drawn if mark.on_one_pass], box)
    axes.plot(*zip(*joint, strict=True), color=_JOINT, lw=3.2 if large else 2.4, zorder=2)
    axes.plot(*zip(*single, strict=True), color=_INK, lw=1.2, ls=(0, (4, 3)), zorder=3)
    for mark in sorted(drawn, key=lambda mark: mark.in_focus):
        _draw_mark(axes, mark, size=62 if large else 26, font=9 if large else 6.5)
    axes.set(xlim=(box.left, box.right), ylim=(box.bottom, box.top))
    name = "Mean over tasks" if comparison.task is None else comparison.task
    axes.set_title(name, loc="left", fontsize=11 if large else 9.5, color=_INK)
    _style(axes, comparison.axis, is_share(mark.quality.value for mark in drawn), large)
    if large:
        handles = _legend(pass_ranks(comparison.points))
        axes.legend(
            handles=handles,
            frameon=False,
            fontsize=9,
            loc="lower left",
            alignment="left",
            title="numbers: leniency",
            title_fontsize=9,
        )


def _draw_mark(axes: Axes, mark: Mark, size: float, font: float) -> None:
    x, y = mark.speed.value, mark.quality.value
    if mark.on_front:
        style: dict[str, Any] = {"color": _MUTED, "lw": 0.8, "alpha": 0.6, "zorder": 4}
        axes.plot(mark.speed[1:], (y, y), **style)
        axes.plot((x, x), mark.quality[1:], **style)
    if mark.is_ar:
        axes.scatter([x], [y], s=size * 2.6, marker="*", color=_INK, zorder=7, linewidths=0)
        return
    rank = (mark.rank or 0) % len(COLOURS)
    alpha = 1.0 if mark.in_focus else 0.35
    axes.scatter([x], [y], s=size, marker=_MARKERS[rank], color=COLOURS[rank], edgecolors="white",
                 linewidths=0.8, alpha=alpha, zorder=6)  # fmt: skip
    if mark.lossless:
        axes.scatter([x], [y], s=size * 3.2, facecolors="none", edgecolors=_INK, linewidths=0.9, zorder=5)
    if mark.on_joint:
        axes.annotate(mark.knob, (x, y), xytext=(6, 5), textcoords="offset points", fontsize=font, color=_MUTED)


def _style(axes: Axes, axis: str, share: bool, large: bool) -> None:
    axes.grid(color=_GRID, lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_MUTED)
    axes.tick_params(colors=_MUTED, labelsize=9 if large else 7.5)
    if axis.endswith("speedup"):
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    if share:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    if large:
        axes.set_xlabel(SPEED_NAMES[axis], color=_INK)
        axes.set_ylabel("Quality", color=_INK)


def _legend(ranks: Mapping[int, int]) -> list[Line2D]:
    passes = [
        Line2D([], [], ls="none", marker=_MARKERS[rank % len(_MARKERS)], color=COLOURS[rank % len(COLOURS)], ms=7,
               label=f"{count} pass{'' if count == 1 else 'es'}")
        for count, rank in ranks.items()
    ]  # fmt: skip
    return [
        Line2D([], [], ls="none", marker="*", color=_INK, ms=11, mew=0, label="AR decoding"),
        Line2D([], [], ls="none", marker="o", color=_INK, ms=11, mfc="none", label="lossless"),
        *passes,
        Line2D([], [], color=_JOINT, lw=3.2, label="joint frontier"),
        Line2D([], [], color=_INK, lw=1.2, ls=(0, (4, 3)), label="one-pass frontier"),
    ]
