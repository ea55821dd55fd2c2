"""A chart of the time per turn by conversation length: an SVG with logarithmic axes."""

import math
from collections.abc import Sequence
from html import escape
from itertools import pairwise

from benchmarks.figures import Figure, Row
from benchmarks.table import number

WIDTH, HEIGHT = 960, 460
LEFT, RIGHT, TOP, BOTTOM = 80, 600, 50, 400
# Colour-blind readers can tell these apart.
COLORS = ("#0072b2", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#555555", "#7b3294")
OURS = "#d55e00"


def picture(row: Row) -> str | None:
    """Return the chart of a row, or None if none of its figures has a length."""
    series: dict[str, list[tuple[int, Figure]]] = {}
    for figure in row.figures:
        if figure.tokens is not None:
            series.setdefault(figure.side, []).append((figure.tokens, figure))
    if not series:
        return None
    x = _Axis([tokens for line in series.values() for tokens, _ in line], LEFT, RIGHT)
    y = _Axis(
        [figure.median for line in series.values() for _, figure in line], BOTTOM, TOP, decades=True
    )
    peers = [side for side in series if not side.startswith("abut")]
    colors = dict.fromkeys(series, OURS) | dict(zip(peers, COLORS, strict=False))
    ends = {side: y.at(line[-1][1].median) for side, line in series.items()}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="13" fill="#222">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="26" font-size="16">Time per turn: {escape(row.work)}</text>',
        *_grid(x, y, [tokens for tokens, _ in next(iter(series.values()))]),
    ]
    for side, line in series.items():
        points = " ".join(f"{x.at(at):.1f},{y.at(figure.median):.1f}" for at, figure in line)
        dash = ' stroke-dasharray="6 4"' if side != "abut" and side not in peers else ""
        width = 2 if side in peers else 3
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colors[side]}" '
            f'stroke-width="{width}"{dash}/>'
        )
    for side, height in zip(ends, _apart(list(ends.values())), strict=True):
        median = number(series[side][-1][1].median, "s")
        parts.append(
            f'<text x="{RIGHT + 8}" y="{height + 4:.1f}" fill="{colors[side]}">'
            f"{escape(side)}, {median}</text>"
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Axis:
    """A logarithmic axis between two coordinates of the chart."""

    def __init__(
        self, values: Sequence[float], first: float, last: float, *, decades: bool = False
    ) -> None:
        self.low, self.high = math.log10(min(values)), math.log10(max(values))
        if decades:  # begin and end on a power of ten
            self.low, self.high = math.floor(self.low), math.ceil(self.high)
        self._first, self._last = first, last

    def at(self, value: float) -> float:
        """Return the coordinate of a value."""
        share = (math.log10(value) - self.low) / ((self.high - self.low) or 1)
        return self._first + share * (self._last - self._first)

    def decades(self) -> list[float]:
        """Return the powers of ten within the axis."""
        return [10.0**power for power in range(math.ceil(self.low), math.floor(self.high) + 1)]


def _grid(x: _Axis, y: _Axis, lengths: Sequence[int]) -> list[str]:
    parts = []
    for value in y.decades():
        at = f"{y.at(value):.1f}"
        parts.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{at}" y2="{at}" stroke="#ddd"/>')
        label = number(value, "s")
        parts.append(f'<text x="{LEFT - 8}" y="{at}" dy="4" text-anchor="end">{label}</text>')
    for length in lengths:
        at = f"{x.at(length):.1f}"
        parts.append(f'<line x1="{at}" x2="{at}" y1="{TOP}" y2="{BOTTOM}" stroke="#eee"/>')
        label = f"{length / 1000:g}k"
        parts.append(f'<text x="{at}" y="{BOTTOM + 20}" text-anchor="middle">{label}</text>')
    middle = (LEFT + RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{BOTTOM + 44}" text-anchor="middle">'
        "tokens in the conversation</text>"
    )
    return parts


def _apart(heights: Sequence[float], least: float = 17) -> list[float]:
    """Return the heights of labels, moved apart so that they do not overlap."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    moved = list(heights)
    for above, index in pairwise(order):
        moved[index] = max(moved[index], moved[above] + least)
    return moved
