"""Learning curves as an SVG: for each name, the mean and the range of its seeds."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from statistics import fmean

WIDTH, HEIGHT = 860, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 690, 64, 330
# Colour-blind readers can tell these apart.
COLORS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7")
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.title { font-size: 15px; }
.grid { stroke: #c8d0d8; stroke-width: 1; }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .grid { stroke: #3d444d; } }
"""
_TICKS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_GAP = 18
"""The distance between the names at the ends of curves."""


def picture(curves: Mapping[str, Sequence[Sequence[float]]], *, title: str, of: str) -> str:
    """Return the picture.

    Args:
        curves: for each name, the values of each step for each seed; all equally long.
        title: the title of the picture.
        of: the label of the y axis.
    """
    values = [value for several in curves.values() for one in several for value in one]
    low, high = min(0.0, *values), max(values)
    tick = next(size for size in _TICKS if (high - low) / size <= 5)
    low, high = tick * math.floor(low / tick), tick * math.ceil(high / tick)
    steps = len(next(iter(curves.values()))[0])

    def x(step: int) -> float:
        return LEFT + step / max(steps - 1, 1) * (RIGHT - LEFT)

    def y(value: float) -> float:
        return BOTTOM - (value - low) / ((high - low) or 1) * (BOTTOM - TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<text x="{LEFT}" y="26" class="title">{escape(title)}</text>',
        f'<text x="{(LEFT + RIGHT) / 2:g}" y="{HEIGHT - 12}" text-anchor="middle">step</text>',
        f'<text x="{LEFT}" y="{TOP - 14}" text-anchor="end">{escape(of)}</text>',
    ]
    for k in range(round((high - low) / tick) + 1):
        value = low + k * tick
        at = y(value)
        parts += [
            f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>',
            f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{value:.1f}</text>',
        ]
    for step in sorted({0, *range(9, steps, 10), steps - 1}):
        parts.append(
            f'<text x="{x(step):.1f}" y="{BOTTOM + 20}" text-anchor="middle">{step + 1}</text>'
        )
    ends: list[tuple[float, str, str]] = []
    for color, (name, several) in zip(COLORS, curves.items(), strict=False):
        by_step = list(zip(*several, strict=True))
        upper = [f"{x(k):.1f},{y(max(seeds)):.1f}" for k, seeds in enumerate(by_step)]
        lower = [f"{x(k):.1f},{y(min(seeds)):.1f}" for k, seeds in enumerate(by_step)]
        line = " ".join(f"{x(k):.1f},{y(fmean(seeds)):.1f}" for k, seeds in enumerate(by_step))
        band = " ".join([*upper, *reversed(lower)])
        parts += [
            f'<polygon points="{band}" fill="{color}" fill-opacity="0.14"/>',
            f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2.5"/>',
        ]
        ends.append((y(fmean(by_step[-1])), name, color))
    at = TOP - _GAP
    for height, name, color in sorted(ends):
        at = max(height, at + _GAP)
        parts.append(
            f'<text x="{RIGHT + 10}" y="{at + 4:.1f}" style="fill: {color}">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"
