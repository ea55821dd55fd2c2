"""Draw `docs/background/why.svg`: how rendering a chat again changes sampled tokens.

    python scripts/draw_why.py docs/background/why.svg

The script encodes the text with the demo's tokenizer.
"""

import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

from abut import Tokenizer
from abut.demo.model import ASSETS

PROMPT, SAMPLED = "<|im_start|>assistant\n", ["\n", "It", " is", " so", ".", "<|im_end|>"]
WIDTH, LEFT, SECOND, BOX, GAP = 860, 24, 272, 46, 6
STYLE = """
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2328; }
.said { font: 15px system-ui, sans-serif; }
.small { font-size: 12px; fill: #59636e; }
.seen rect { fill: #eef1f4; stroke: #c8d0d8; }
.sampled rect { fill: #d8ecff; stroke: #0072b2; }
.wrong rect { fill: #ffe3d6; stroke: #d55e00; stroke-width: 2.5; }
.bad { fill: #b34700; font-weight: 600; }
.good { fill: #00664d; font-weight: 600; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .small { fill: #9198a1; }
  .seen rect { fill: #21262d; stroke: #3d444d; }
  .sampled rect { fill: #0c2d4d; stroke: #56b4e9; }
  .wrong rect { fill: #4a2210; stroke: #ff9a56; }
  .bad { fill: #ff9a56; } .good { fill: #4cc9a0; }
}
"""
Token = tuple[int, str, str]
"""Its id, its text, and the class of its box."""


def main(path: str) -> None:
    """Write the picture."""
    Path(path).write_text(picture(), encoding="utf-8")


def picture() -> str:
    """Return the picture as SVG."""
    tokenizer = Tokenizer.from_file(ASSETS / "tokenizer.json")
    prompt = tokenizer.encode(PROMPT, added="parse").tolist()
    sampled = [id_ for text in SAMPLED for id_ in tokenizer.encode(text, added="parse").tolist()]
    again = tokenizer.encode(PROMPT + "".join(SAMPLED), added="parse").tolist()
    kept = next(k for k, id_ in enumerate(again) if id_ != [*prompt, *sampled][k])
    if again == [*prompt, *sampled] or again[kept + 1 :] != sampled[1:]:
        raise ValueError("this tokenizer does not merge the two newlines: choose another text")

    def shown(ids: Sequence[int], kind: str) -> list[Token]:
        return [(id_, tokenizer.decode([id_]), kind) for id_ in ids]

    seen = [*shown(prompt, "seen"), *shown(sampled, "sampled")]
    rendered = [
        *shown(again[:kept], "seen"),
        *shown([again[kept]], "wrong"),
        *shown(again[kept + 1 :], "sampled"),
    ]
    fused, lost = again[kept], sampled[0]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 316" role="img" '
        'aria-label="Rendering the conversation again changes a sampled token">',
        f"<style>{STYLE}</style>",
        *_row(seen, 44, "The prompt, and in blue the tokens that the model sampled"),
        *_row(rendered, 148, "The same conversation, rendered and tokenized again"),
        _text(LEFT, 234, f"{fused} was never sampled.", "said bad"),
        _text(
            SECOND,
            234,
            f"The sampled {lost} is gone, so all later logprobs are off by one token.",
            "said",
        ),
        _text(LEFT, 274, "abut trains on the first row.", "said good"),
        _text(
            SECOND,
            274,
            "It never tokenizes sampled text again. It tokenizes each new reply once,",
            "said",
        ),
        _text(SECOND, 296, "appends its tokens, and reports whether the seam is exact.", "said"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _row(tokens: Sequence[Token], top: int, title: str) -> list[str]:
    parts = [_text(LEFT, top - 14, title, "said")]
    x = LEFT
    for id_, text, kind in tokens:
        label = escape(text.replace("\n", "\\n").replace(" ", "␣"))
        width = max(BOX, 9 * len(text.replace("\n", "\\n")) + 16)
        middle = x + width / 2
        parts.append(
            f'<g class="{kind}"><rect x="{x}" y="{top}" width="{width}" height="32" rx="5"/>'
            f'<text x="{middle:g}" y="{top + 21}" text-anchor="middle">{label}</text>'
            f'<text x="{middle:g}" y="{top + 48}" text-anchor="middle" class="small">{id_}</text>'
            "</g>"
        )
        x += width + GAP
    return parts


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(text)}</text>'


if __name__ == "__main__":
    main(*sys.argv[1:])
