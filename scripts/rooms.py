"""Draw the rooms of abut and their imports into docs/background/architecture.md.

An import counts if it is at module level, also under `if TYPE_CHECKING`. An import inside a
function runs when the function runs, and does not count.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "python" / "abut"
PAGE = ROOT / "docs" / "background" / "architecture.md"
BEGIN, END = "<!-- begin picture of the rooms -->\n", "<!-- end picture of the rooms -->\n"

Sources: TypeAlias = Mapping[str, str]
"""Source texts by path below the package."""


def main() -> None:
    """Update the picture in the page."""
    PAGE.write_text(with_picture(PAGE.read_text("utf-8"), sources()), "utf-8")


def with_picture(page: str, modules: Sources) -> str:
    """Return the page with the picture of these modules."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    order = [name for name, _ in map_lines(page)]
    return before + BEGIN + picture(imports_of(modules), order) + END + after


def picture(imported: Mapping[str, set[str]], order: list[str]) -> str:
    """Return the rooms as a Mermaid chart, with arrows from each room to the rooms that it imports.

    An arrow is left out where others lead the same way. The rooms that nothing else imports are at
    the top.
    """
    rooms = {room_of(module, order): set[str]() for module in imported}
    for module, others in imported.items():
        rooms[room_of(module, order)] |= {room_of(other, order) for other in others}
    below: dict[str, set[str]] = {}
    for room in order:  # a room imports only rooms before it
        rooms[room].discard(room)
        below[room] = rooms[room].union(*(below[other] for other in rooms[room]))
    lines = [f'    {name_of(room)}["{room}"]' for room in order]
    lines += [
        f"    {name_of(room)} --> {name_of(other)}"
        for room in order
        for other in sorted(rooms[room], key=order.index)
        if not any(other in below[nearer] for nearer in rooms[room])
    ]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```", ""])


def room_of(module: str, order: list[str]) -> str:
    """Return the room that a module is in, as the map writes it."""
    name = module.split(".")[1] if "." in module else "__init__"
    return next(room for room in order if name_of(room) == name)


def name_of(room: str) -> str:
    """Return the name that modules import a room by: `floor` for `floor/`, or for `floor.py`."""
    return room.removesuffix("/").partition(".")[0]


def sources(folder: Path = PACKAGE) -> Sources:
    """Return the modules of a package, by their paths below it."""
    files = (path for kind in ("*.py", "*.pyi") for path in folder.rglob(kind))
    return {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in files}


def map_lines(text: str) -> list[tuple[str, str]]:
    """Return each room of the table under the heading `The rooms`, with its sentence."""
    _, section = re.split(r"^## The rooms$", text, flags=re.MULTILINE)
    section = section.partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \| (.*?) \|$", section, flags=re.MULTILINE)


def top_of(path: str) -> str:
    """Return the room that a file is in, as the map writes it: `floor/`, or `ground.py`."""
    top, slash, _ = path.partition("/")
    return top + slash


def module_of(path: str, package: str = "abut") -> str:
    """Return the name of the module at a path: `abut.floor` for `floor/__init__.py`."""
    parts = Path(package, path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(sources: Sources, package: str = "abut") -> dict[str, set[str]]:
    """Return what each module imports when it is imported, or when its types are checked."""
    modules = {module_of(path, package): path for path in sources}
    return {
        module: {
            name if name in modules else name.rpartition(".")[0]
            for name in imported_names(sources[path], module, path.endswith("__init__.py"))
            if name.split(".")[0] == package
        }
        for module, path in modules.items()
    }


def imported_names(source: str, module: str, is_package: bool) -> Iterator[str]:
    """Yield names with the modules they come from; a name may be that of a module."""
    for statement in at_module_level(ast.parse(source)):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
            continue
        above = module.split(".")
        above = above[: len(above) - statement.level + is_package] if statement.level else []
        start = ".".join([*above, *([statement.module] if statement.module else [])])
        yield from (f"{start}.{alias.name}" for alias in statement.names)


def at_module_level(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that run when the module is imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from at_module_level(child)


if __name__ == "__main__":
    main()
