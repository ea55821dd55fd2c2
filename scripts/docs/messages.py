"""List every message of abut: errors, warnings, notices, hints and the texts of the command line.

The list is read from the source, so nothing has to be registered. A message is a string of at least
three words that is not a docstring. Values that are filled in at run time appear as `{name}`.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "abut"
CRATES = ROOT / "rust"
WORDS = 3


class Message(NamedTuple):
    """A message that abut shows, and its place in the source."""

    path: str
    """The path from the root of the repository, with slashes."""
    line: int
    kind: str
    """`error`, `warning`, `notice`, `help`, or `text` for parts of other messages."""
    text: str


def all_messages() -> list[Message]:
    """Return every message of the package, then those of the Rust core."""
    found: list[Message] = []
    for file in sorted(PACKAGE.rglob("*.py")):
        path = file.relative_to(ROOT).as_posix()
        found += python_messages(file.read_text(encoding="utf-8"), path)
    for crate in ("core", "py"):
        for file in sorted((CRATES / crate / "src").rglob("*.rs")):
            path = file.relative_to(ROOT).as_posix()
            found += rust_messages(file.read_text(encoding="utf-8"), path)
    return found


# ---- Python


def python_messages(source: str, path: str) -> list[Message]:
    """Return the messages of a Python module."""
    return list(_Strings(path).messages_of(ast.parse(source), "text"))


_LOG_LEVELS = {"debug": "notice", "info": "notice", "warning": "warning", "error": "warning"}
_LOG_LEVELS |= {"exception": "warning", "warn": "warning"}
_HELP = {"help", "description", "epilog", "title"}


class _Strings:
    """Walk through a module, down to its longest strings."""

    def __init__(self, path: str) -> None:
        self._path = path

    def messages_of(self, node: ast.AST, kind: str) -> Iterator[Message]:
        """Yield the messages in a node; `kind` applies if nothing inside implies another kind."""
        text = text_of(node)
        if text is not None:
            if _is_prose(text):
                yield Message(self._path, node.lineno, kind, text)  # type: ignore[attr-defined]
            return
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return  # a docstring, of a module, a function or an attribute
        if isinstance(node, ast.Raise):
            kind = "error"
        elif isinstance(node, ast.Call):
            kind = _LOG_LEVELS.get(getattr(node.func, "attr", ""), kind)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns"):
                continue  # annotations can be strings
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self.messages_of(child, _kind_of(child, kind))


def _kind_of(node: ast.AST, kind: str) -> str:
    """Return the kind of a keyword or dict, if its names imply one."""
    if isinstance(node, ast.keyword) and node.arg in _HELP:
        return "help"
    if isinstance(node, ast.Dict):
        keys = {key.value for key in node.keys if isinstance(key, ast.Constant)}
        return "help" if keys == {"help"} else kind
    return kind


def text_of(node: ast.AST) -> str | None:
    """Return the text of a string expression, or None for any other node."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else _hole(part)
            for part in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = text_of(node.left), text_of(node.right)
        if left is None and right is None:
            return None
        return (_hole(node.left) if left is None else left) + (
            _hole(node.right) if right is None else right
        )
    return None


def _hole(node: ast.AST) -> str:
    """Return the name of a value that is filled in."""
    while True:
        if isinstance(node, ast.FormattedValue):
            node = node.value
        elif isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
            node = node.args[0]  # short(x), repr(x), len(x), ', '.join(x)
        elif isinstance(node, ast.Subscript):
            node = node.value
        else:
            break
    if isinstance(node, ast.Name):
        return "{" + node.id.strip("_") + "}"
    if isinstance(node, ast.Attribute):
        of_type = node.attr == "__name__" and isinstance(node.value, ast.Call)
        return "{type}" if of_type else "{" + node.attr.strip("_") + "}"
    if isinstance(node, ast.Call):
        return _hole(node.func)
    return "{…}"


# ---- Rust

_RUST_TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|r(?P<hashes>\#*)"(?P<raw>.*?)"(?P=hashes)|"(?P<text>(?:[^"\\]|\\.)*)\"|'(?:[^'\\]|\\.)'""",
    re.DOTALL,
)
_PROOF = re.compile(r"(?:expect|unreachable!|assert\w*!|deprecated|doc = |reason = )\s*\(?[^;{}]*$")


def rust_messages(source: str, path: str) -> list[Message]:
    """Return the messages of a Rust file, without those of its tests and its proofs."""
    source = source.partition("#[cfg(test)]")[0]
    found = []
    for token in _RUST_TOKEN.finditer(source):
        text = token["raw"] if token["text"] is None else _unescaped(token["text"])
        if text is None or not _is_prose(text):
            continue
        before = source[max(0, token.start() - 200) : token.start()]
        if not _PROOF.search(before):
            line = source.count("\n", 0, token.start()) + 1
            found.append(Message(path, line, "error", text))
    return found


def _unescaped(literal: str) -> str:
    text = re.sub(r"\\\n\s*", "", literal)
    for escaped, plain in {r"\n": "\n", r"\"": '"', r"\\": "\\", "{{": "{", "}}": "}"}.items():
        text = text.replace(escaped, plain)
    return text


# ---- Both

_CODE = re.compile(r"\x1b|</?\w+[^>]*>|^\s*(?:def|from|import|SELECT) |[{(]\?|\\[sdwb]")
_WORD = re.compile(r"(?<![\w/.<-])[A-Za-z][a-z']*(?![\w/>=(-])")


def _is_prose(text: str) -> bool:
    """Return whether a string is a sentence or a part of one, and not code, markup or data."""
    if "\x1b" in text or re.search(
        r"</?\w+[^>]*>|^\s*(?:def|from|import|SELECT) |[{(]\?|\\[sdwb]", text
    ):
        return False
    return len(_WORD.findall(re.sub(r"{[^{} ]*}", "", text))) >= WORDS
