"""Find phrases that sound translated, in messages, docstrings and pages.

`python -m scripts.docs.phrases [PATH …]` prints each one with its place and a better wording.
A path is a Python, Rust or Markdown file, or a folder; of Python files the docstrings are read too.
Without paths, the messages of the package are read.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from scripts.docs.messages import Message, all_messages, python_messages, rust_messages

_NEGATED = "knows?|knew|fails?|begins?|asks?|writes?|shows?|trains?|loses?"
_NO_LONGER = "longer|more|fewer|less|different|guarantee"
_HIDDEN = "a proxy|a reverse proxy|a load balancer|a firewall|NAT|the scenes"
_TEXT = "block|part|file|content|message|model|tokenizer|field|prompt|reply"

FORBIDDEN: dict[str, str] = {
    rf"(?<!\bthere )\b(?:is|are|was|were) no (?!(?:{_NO_LONGER})\b)": "is not a …",
    rf"\b(?:{_NEGATED}) (?:no|none|nothing)\b(?! (?:{_NO_LONGER})\b)": "does not know …",
    r"\b(?:is|are) none of\b": "is not one of …",
    r"\bnone (?:that|is|was|such)\b": "does not …, was not …",
    r"\bof (?:yours|ours)\b": "your …, our …",
    r"\bone's own\b": "your own, its own",
    r"\banother one's\b|\bother ones\b": "name the thing",
    r"\b(?:comes?|came|coming) back\b": "returns, restarts, repeats",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\banew\b|\bfor ever\b|\bat the most\b": "again, forever, at most",
    r"\bno telling\b|\bnot so an?\b": "cannot tell, except",
    r"(?:^|\n|hint: |\. )(?:Whether|Those|That of|Of one)\b": "begin with a verb or a noun",
    r"^[Ww]hat (?![^\n]*\?)": "name the subject",
    r"\bthat there (?:is|are)\b": "means no …, there is no …",
    r"\bwho asks\b|\bwhoever\b|\bwhat(?:ever)? asks\b": "the client, the caller, you",
    r"\b(?:otherwise|another) than\b": "differently from, other than",
    r"\b(?:is|are|not|name) (?:that|those) of\b": "repeat the noun",
    r"\bstands?\b(?! (?:for|still)\b)": "is, appears",
    rf"\bbehind (?!{_HIDDEN}\b)": "after",
    r"\bbeside\b": "next to, together with, besides",
    r"\bfrom (?:\d+|one|zero) on\b": "1 or more",
    r"\b(?:says?|said) nothing\b": "does not say, is empty",
    r"\bas said\b": "as described",
    r"\bbec[ao]mes? of\b": "happens to",
    r"\b(?:goes|go|went) on\b": "continues",
    rf"\ba text\b(?! (?:{_TEXT})s?\b)": "a string, text",
    r"(?:^|\n|\. )(?:Given|Played|Trained|Known|Kept|Told|Asked) (?:is|are)\b": "subject first",
    r"\bless (?:those|that)\b": "minus, without",
}
"""Each phrase as a regular expression, with a better wording."""


def offences(text: str) -> list[tuple[str, str]]:
    """Return the forbidden phrases in a string, each with a better wording."""
    found = [(re.search(pattern, text), instead) for pattern, instead in FORBIDDEN.items()]
    return [(match[0].strip(), instead) for match, instead in found if match]


def docstrings(source: str, path: str) -> Iterator[Message]:
    """Yield the docstrings of a Python module, those of attributes included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str):
                yield Message(path, node.lineno, "docstring", text)


def paragraphs(page: str, path: str) -> Iterator[Message]:
    """Yield the paragraphs of a Markdown page, without its code."""
    prose = re.sub(
        r"^( *)```.*?^\1```$|<!--.*?-->|`[^`\n]+`",
        lambda match: re.sub(r"[^\n]+", "`…`", match[0]),
        page,
        flags=re.DOTALL | re.MULTILINE,
    )
    for match in re.finditer(r"[^\n]+(?:\n[^\n]+)*", prose):
        yield Message(path, page.count("\n", 0, match.start()) + 1, "page", match[0])


def texts_of(paths: Iterable[Path]) -> Iterator[Message]:
    """Yield the texts of these files and folders."""
    for given in paths:
        files = [given]
        if given.is_dir():
            files = sorted(f for f in given.rglob("*") if f.suffix in (".py", ".rs", ".md"))
        for file in files:
            source = file.read_text(encoding="utf-8")
            name = file.as_posix()
            if file.suffix == ".py":
                yield from python_messages(source, name)
                yield from docstrings(source, name)
            elif file.suffix == ".rs":
                yield from rust_messages(source, name)
            else:
                yield from paragraphs(source, name)


def main(arguments: list[str]) -> int:
    """Print the forbidden phrases, and return 1 if there are any."""
    texts = list(texts_of(map(Path, arguments))) if arguments else all_messages()
    count = 0
    for message in texts:
        for phrase, instead in offences(message.text):
            count += 1
            shown = " ".join(message.text.split())
            print(f"{message.path}:{message.line}: {phrase!r} -> {instead}\n    {shown[:160]}")
    print(f"{count} forbidden phrases in {len(texts)} texts", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
