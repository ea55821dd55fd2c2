"""Draw `docs/how-to/credit.svg`: the advantages that `Returns` gives to turns of three rollouts.

    python -m scripts.draw_credit docs/how-to/credit.svg

The script computes the advantages with abut's code.
"""

import sys
from collections.abc import Sequence
from html import escape
from itertools import accumulate
from pathlib import Path

from abut.trl.credit import Returns, ScoredConversation, ScoredRollout, ScoredTurn, credited

PAID = ([3.0, 0.0], [0.0, 0.0, 2.0], [0.0])
"""The reward of each turn of each rollout."""

WIDTH, HEIGHT, LEFT, TOP, BOX, GAP, ROW = 860, 344, 128, 56, 216, 16, 88
STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1f2328; }
.small { font-size: 12px; fill: #59636e; }
rect { fill: #d8ecff; stroke: #0072b2; }
.ended rect { fill: none; stroke: #8c959f; stroke-dasharray: 5 4; }
.up { fill: #00664d; font-weight: 600; }
.down { fill: #b34700; font-weight: 600; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .small { fill: #9198a1; }
  rect { fill: #0c2d4d; stroke: #56b4e9; } .ended rect { stroke: #6e7681; }
  .up { fill: #4cc9a0; } .down { fill: #ff9a56; }
}
"""


def main(path: str) -> None:
    """Write the picture."""
    Path(path).write_text(picture(), encoding="utf-8")


def picture() -> str:
    """Return the picture as SVG."""
    returns = [[*accumulate(reversed(paid))][::-1] for paid in PAID]
    rollouts = [
        ScoredRollout(
            str(k),
            sum(paid),
            0.0,
            [ScoredConversation(None, None, [ScoredTurn(1, reward) for reward in paid])],
        )
        for k, paid in enumerate(PAID)
    ]
    found = credited(
        Returns(), rollouts, num_generations=len(PAID), scale_rewards="none"
    ).advantages
    longest = max(map(len, PAID))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-label="Three rollouts of a group: the reward and return of each turn, the mean '
        'return of the others at that turn, and the advantage">',
        f"<style>{STYLE}</style>",
        *(
            f'<text x="{LEFT + t * (BOX + GAP)}" y="{TOP - 16}">Turn {t + 1}</text>'
            for t in range(longest)
        ),
    ]
    for k, paid in enumerate(PAID):
        y = TOP + k * ROW
        parts.append(f'<text x="16" y="{y + 28}">Rollout {k + 1}</text>')
        parts.append(f'<text x="16" y="{y + 48}" class="small">total reward {sum(paid):g}</text>')
        for t in range(longest):
            x = LEFT + t * (BOX + GAP)
            if t < len(paid):
                others = [values[min(t, len(values) - 1)] for values in returns]
                others.pop(k)
                advantage = found[k][0][t]
                assert isinstance(advantage, float)
                parts += _turn(x, y, paid[t], returns[k][t], others, advantage)
            else:
                parts += [
                    f'<g class="ended"><rect x="{x}" y="{y}" width="{BOX}" height="64" rx="5"/>'
                    f'<text x="{x + 12}" y="{y + 37}" class="small">ended; return counts as '
                    f"{returns[k][-1]:g}</text></g>"
                ]
    said = (
        "Advantage = (return − mean return of the others) × 2/3, as in GRPO with groups of three."
    )
    parts.append(f'<text x="16" y="{HEIGHT - 14}" class="small">{escape(said)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _turn(
    x: int, y: int, paid: float, value: float, others: Sequence[float], advantage: float
) -> list[str]:
    kind = "up" if advantage > 0 else "down"
    mean = sum(others) / len(others)
    return [
        f'<rect x="{x}" y="{y}" width="{BOX}" height="64" rx="5"/>',
        f'<text x="{x + 12}" y="{y + 26}">reward {paid:g}, return {value:g}</text>',
        f'<text x="{x + 12}" y="{y + 50}" class="small">mean of others {mean:g}</text>',
        f'<text x="{x + BOX - 12}" y="{y + 50}" text-anchor="end" class="{kind}">'
        f"{advantage:+.2f}</text>",
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
