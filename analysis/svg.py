"""A frontier as inline SVG: themed by CSS variables, every point with its details on hover or focus."""

from dataclasses import dataclass
from html import escape

from markupsafe import Markup

from analysis.chart import Limits, Line, Mark, limits, marks, staircase, ticks
from analysis.comparison import Comparison
from analysis.formatting import SPEED_NAMES, is_share, quality_text, speed_text

#: Marker outlines around (0, 0), one per rank of passes, about equal in area.
MARKERS = (
    "M-5,0a5,5 0 1,0 10,0a5,5 0 1,0 -10,0z",
    "M-4.6,-4.6H4.6V4.6H-4.6z",
    "M0,-6L5.8,4.4H-5.8z",
    "M0,-6.4L6.4,0L0,6.4L-6.4,0z",
    "M0,6L5.8,-4.4H-5.8z",
    "M-2,-6H2V-2H6V2H2V6H-2V2H-6V-2H-2z",
)
_AR = "M0,-7.5L2,-2.4L7.5,-2.3L3.2,1.1L4.7,6.4L0,3.3L-4.7,6.4L-3.2,1.1L-7.5,-2.3L-2,-2.4z"
_PLACES = ((9, -8, "start"), (-9, -8, "end"), (9, 15, "start"), (-9, 15, "end"))


@dataclass(frozen=True)
class _Frame:
    """Data to pixels."""

    box: Limits
    width: int
    height: int
    margin: tuple[int, int, int, int] = (12, 14, 46, 62)  # top, right, bottom, left

    def x(self, value: float) -> float:
        span = self.width - self.margin[1] - self.margin[3]
        return self.margin[3] + span * (value - self.box.left) / (self.box.right - self.box.left)

    def y(self, value: float) -> float:
        span = self.height - self.margin[0] - self.margin[2]
        return self.height - self.margin[2] - span * (value - self.box.bottom) / (self.box.top - self.box.bottom)


def frontier_svg(comparison: Comparison, width: int, height: int) -> Markup:
    """The joint frontier solid, the one-pass frontier dashed, the gain between them shaded."""
    drawn = marks(comparison.points)
    frame = _Frame(limits(drawn), width, height)
    share = is_share(mark.quality.value for mark in drawn)
    joint = staircase([mark for mark in drawn if mark.on_joint], frame.box)
    single = staircase([mark for mark in drawn if mark.on_one_pass], frame.box)
    parts = [
        _axes(frame, comparison.axis, share),
        f'<path class="gain" fill-rule="evenodd" d="{_area(joint, frame)}{_area(single, frame)}"/>',
        f'<path class="joint" d="{_path(joint, frame)}"/>',
        f'<path class="single" d="{_path(single, frame)}"/>',
        *(_bar(mark, frame) for mark in drawn if mark.on_front),
        *(_marker(m, frame, comparison.axis, share) for m in sorted(drawn, key=lambda m: m.in_focus)),
        *_labels(drawn, frame),
    ]
    name = "the mean over tasks" if comparison.task is None else comparison.task
    return Markup(
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="Speed and quality of every operating point: {escape(name)}">{"".join(parts)}</svg>'
    )


def marker_svg(rank: int) -> Markup:
    """One marker for a legend."""
    path = MARKERS[rank % len(MARKERS)]
    return Markup(f'<svg class="key" viewBox="-8 -8 16 16"><path class="s{rank % len(MARKERS)}" d="{path}"/></svg>')


def star_svg() -> Markup:
    """The AR point's marker for a legend."""
    return Markup(f'<svg class="key" viewBox="-8 -8 16 16"><path class="ar" d="{_AR}"/></svg>')


def _axes(frame: _Frame, axis: str, share: bool) -> str:
    box, (top, right, bottom, left) = frame.box, frame.margin
    base, end = frame.height - bottom, frame.width - right
    parts = []
    for value in ticks(box.left, box.right, 7 if frame.width > 500 else 5):
        x = frame.x(value)
        text = f"{value:g}×" if axis.endswith("speedup") else f"{value:g}"
        parts.append(f'<path class="grid" d="M{x:.1f},{top}V{base}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{base + 17}" text-anchor="middle">{text}</text>')
    for value in ticks(box.bottom, box.top, 6 if frame.height > 350 else 5):
        y = frame.y(value)
        text = f"{100 * value:g} %" if share else f"{value:g}"
        parts.append(f'<path class="grid" d="M{left},{y:.1f}H{end}"/>')
        parts.append(f'<text class="tick" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    middle = (top + base) / 2
    parts.append(f'<path class="axis" d="M{left},{top}V{base}H{end}"/>')
    parts.append(
        f'<text class="name" x="{(left + end) / 2:.0f}" y="{frame.height - 8}" text-anchor="middle">'
        f"{SPEED_NAMES[axis]} →</text>"
        f'<text class="name" transform="translate(14,{middle:.0f})rotate(-90)" text-anchor="middle">Quality →</text>'
    )
    return "".join(parts)


def _path(line: Line, frame: _Frame) -> str:
    return "M" + "L".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in line)


def _area(line: Line, frame: _Frame) -> str:
    return f"{_path([*line, (frame.box.left, frame.box.bottom)], frame)}z"


def _bar(mark: Mark, frame: _Frame) -> str:
    """The two intervals of a point."""
    x, y = frame.x(mark.speed.value), frame.y(mark.quality.value)
    return (
        f'<path class="bar" d="M{frame.x(mark.speed.low):.1f},{y:.1f}H{frame.x(mark.speed.high):.1f}'
        f'M{x:.1f},{frame.y(mark.quality.low):.1f}V{frame.y(mark.quality.high):.1f}"/>'
    )


def _marker(mark: Mark, frame: _Frame, axis: str, share: bool) -> str:
    rank = (mark.rank or 0) % len(MARKERS)
    style, path = ("ar", _AR) if mark.is_ar else (f"s{rank}", MARKERS[rank])
    ring = '<circle class="ring" r="9.5"/>' if mark.lossless else ""
    faded = "" if mark.in_focus else " off"
    return (
        f'<g class="pt {style}-pt{faded}" tabindex="0" '
        f'transform="translate({frame.x(mark.speed.value):.1f},{frame.y(mark.quality.value):.1f})">'
        f"<title>{escape(_details(mark, axis, share))}</title>"
        f'<circle class="hit" r="13"/>{ring}<path class="{style}" d="{path}"/></g>'
    )


def _details(mark: Mark, axis: str, share: bool) -> str:
    speed = [speed_text(value, axis) for value in mark.speed]
    quality = [quality_text(value, share) for value in mark.quality]
    where = [name for name, on in (("joint", mark.on_joint), ("one-pass", mark.on_one_pass)) if on]
    return "\n".join(
        [
            mark.label + (" (lossless)" if mark.lossless else ""),
            f"speed {speed[0]}  ({speed[1]} to {speed[2]})",
            f"quality {quality[0]}  ({quality[1]} to {quality[2]})",
            f"on the {' and '.join(where)} frontier" if where else "on no frontier",
        ]
    )


def _labels(drawn: list[Mark], frame: _Frame) -> list[str]:
    """The leniency beside each point in focus, where there is room for it."""
    taken = [(frame.x(mark.speed.value), frame.y(mark.quality.value), 7.0) for mark in drawn]
    parts = []
    for mark in sorted((m for m in drawn if m.in_focus), key=lambda m: not m.on_joint):
        x, y, half = frame.x(mark.speed.value), frame.y(mark.quality.value), 3.6 * len(mark.knob)
        for dx, dy, anchor in _PLACES:
            at = (x + dx + (half if anchor == "start" else -half), y + dy - 4)
            inside = half < at[0] < frame.width - half and at[1] > 8
            if inside and all(abs(at[0] - a) > half + width or abs(at[1] - b) > 12 for a, b, width in taken):
                taken.append((*at, half + 2))
                parts.append(
                    f'<text class="knob" x="{x + dx:.1f}" y="{y + dy:.1f}" text-anchor="{anchor}">'
                    f"{escape(mark.knob)}</text>"
                )
                break
    return parts
