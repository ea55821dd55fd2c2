"""Count the lines of code of abut: `python scripts/count_lines.py [CHECKOUT]`.

A line of code has something other than a comment or a docstring on it. The strings under
attributes are docstrings too.
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

LAYOUT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)
OUTSIDE = {"bench", "_reference"}
"""Rooms of older checkouts that are no longer in the package; they do not count."""


def lines_of_code(source: str) -> int:
    """Return how many lines of a module are code."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if is_docstring(statement):
                code.difference_update(range(statement.lineno, statement.end_lineno + 1))
    return len(code)


def is_docstring(statement: ast.AST) -> bool:
    """Return whether a statement is only a string."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def main() -> None:
    """Print the lines and files of each room, and the totals."""
    checkout = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]
    package = checkout / "python" / "abut"
    lines, files = Counter[str](), Counter[str]()
    for path in sorted(package.rglob("*.py")):
        room = path.relative_to(package).parts[0]
        if room in OUTSIDE:
            continue
        lines[room] += lines_of_code(path.read_text(encoding="utf-8"))
        files[room] += 1
    for room in lines:
        print(f"{room:20} {lines[room]:6} lines {files[room]:4} files")
    print(f"{'all':20} {lines.total():6} lines {files.total():4} files")


if __name__ == "__main__":
    main()
