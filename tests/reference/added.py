"""Added tokens and their two classes: control tokens, and those that ordinary text may become."""

from dataclasses import dataclass

# The living standard, then what browsers once knew.
HTML_ELEMENTS = frozenset(
    """
    a abbr address area article aside audio b base bdi bdo blockquote body br button canvas caption
    cite code col colgroup data datalist dd del details dfn dialog div dl dt em embed fieldset
    figcaption figure footer form h1 h2 h3 h4 h5 h6 head header hgroup hr html i iframe img input
    ins kbd label legend li link main map mark menu meta meter nav noscript object ol optgroup
    option output p picture pre progress q rp rt ruby samp script search section select slot small
    source span strong style sub summary sup svg table tbody td template textarea tfoot th thead
    time title tr track u ul var video wbr

    acronym applet basefont bgsound big blink center dir font frame frameset isindex keygen listing
    marquee menuitem multicol nextid nobr noembed noframes param plaintext rb rtc spacer strike tt
    xmp
    """.split()  # noqa: SIM905 (as a list it is 142 lines)
)


@dataclass(frozen=True)
class AddedToken:
    """An added token. `pattern` is what it matches: its content, normalized where `normalized`."""

    id: int
    content: str
    pattern: str
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool
    special: bool
    control: bool


def is_textual(content: str) -> bool:
    """Whitespace (`▁` counts: it is SentencePiece's space) or a tag named like an HTML element."""
    if all(is_space(char) or char == "▁" for char in content):
        return True
    if not (content.startswith("<") and content.endswith(">") and len(content) > 2):
        return False
    inside = content[1:-1]
    name = inside[1:] if inside.startswith("/") else inside.removesuffix("/")
    return name.rstrip().lower() in HTML_ELEMENTS


def is_space(char: str) -> bool:
    """Unicode `White_Space`. `str.isspace` counts four control characters more."""
    return char.isspace() and not "\x1c" <= char <= "\x1f"
