"""No circle of modules, and rooms in one order, the one that docs/background/architecture.md shows.

`scripts/rooms.py` says which imports count. Each checker has its negative control.
"""

import ast
import re
from collections.abc import Mapping
from itertools import pairwise

import pytest

from scripts.rooms import (
    PAGE,
    ROOT,
    Sources,
    at_module_level,
    imports_of,
    map_lines,
    module_of,
    name_of,
    picture,
    sources,
    top_of,
    with_picture,
)

BENCHMARKS = ROOT / "benchmarks"
TESTS = ROOT / "tests"
PICTURED = PAGE.read_text(encoding="utf-8")

LONGEST = 400
"""Lines of a file, but for the stub of the native module, which is one list."""

NO_ROOM = {"benchmarks", "core", "docs", "gpu", "kit", "real_vllm", "reference", "trl_matrix"}
"""Folders of tests that are not a room of the package: the benchmarks, the native module and its
reference, the documentation site, the kit, and three environments of their own."""


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(imports_of(sources())) == []
    assert circles(imports_of(sources(BENCHMARKS), "benchmarks")) == []


def test_each_room_imports_only_rooms_below_it() -> None:
    imported = imports_of(sources())
    assert wrong_imports(imported, list(the_map())) == []
    assert sum(map(len, imported.values())) > 300  # that many were found at all


def test_the_map_names_what_there_is_once_and_nothing_else() -> None:
    lines = [name for name, _ in map_lines(PICTURED)]
    assert sorted(lines) == sorted({top_of(path) for path in sources()})


def test_the_picture_is_of_the_imports_that_there_are() -> None:
    assert with_picture(PICTURED, sources()) == PICTURED, "run scripts/rooms.py"


def test_a_picture_has_no_arrow_where_others_lead() -> None:
    drawn = picture(imports_of(HOUSE), ORDER)
    assert '    floor["floor/"]\n' in drawn
    assert "    top --> floor\n" in drawn
    assert "    floor --> _core\n" in drawn
    assert "floor --> ground" not in drawn  # by way of the core


def test_each_room_says_in_one_sentence_what_it_is_for() -> None:
    assert unsaid(sources()) == []
    assert [name for name, what in the_map().items() if not what] == []


def test_no_package_hides_a_submodule() -> None:
    assert hidden(sources()) == []


def test_no_file_is_too_long() -> None:
    assert too_long(sources()) + too_long(sources(BENCHMARKS)) == []


def test_each_folder_of_tests_has_the_name_of_a_room() -> None:
    folders = {path.parent.name for path in TESTS.glob("*/*.py")} - NO_ROOM
    assert folders <= {name.removesuffix("/") for name in the_map() if name.endswith("/")}


HOUSE = {
    "__init__.py": "from abut.top.roof import Roof",
    "ground.py": '"""What all stand on."""',
    "_core.pyi": "from abut.ground import Stone",
    "floor/__init__.py": '"""Where people walk.\n\nAnd sit."""\nfrom abut.floor.board import Board',
    "floor/board.py": "import abut.ground\nfrom abut import _core",
    "top/__init__.py": '"""What keeps the rain out."""',
    "top/roof.py": "from abut.floor import Board\nfrom abut.top import tile",
    "top/tile.py": "import os\nfrom abut.floor.board import Board",
}
ORDER = ["ground.py", "_core.pyi", "floor/", "top/", "__init__.py"]


def test_a_sound_house_passes() -> None:
    imported = imports_of(HOUSE)
    assert circles(imported) == []
    assert wrong_imports(imported, ORDER) == []
    assert unsaid(HOUSE | {"__init__.py": '"""The house."""'}) == []
    assert hidden(HOUSE) == []
    assert too_long(HOUSE) == []


def test_the_checkers_know_what_is_imported() -> None:
    imported = imports_of(HOUSE)
    assert imported["abut.floor.board"] == {"abut.ground", "abut._core"}  # submodules, no package
    assert imported["abut.top.roof"] == {"abut.floor", "abut.top.tile"}
    assert imported["abut.top.tile"] == {"abut.floor.board"}
    assert imported["abut.floor"] == {"abut.floor.board"}


@pytest.mark.parametrize(
    "statement",
    [
        "from abut.top.roof import Roof",
        "import abut.top.roof",
        "import abut.top.roof as above",
        "from abut.top import roof",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from abut.top.roof import Roof",
        "try:\n    from abut.top.roof import Roof\nexcept ImportError:\n    pass",
        "class Tile:\n    from abut.top.roof import Roof",
        "from .roof import Roof",
        "from . import roof",
    ],
)
def test_a_circle_is_found_however_it_is_imported(statement: str) -> None:
    imported = imports_of(HOUSE | {"top/tile.py": statement})
    assert circles(imported) == [["abut.top.roof", "abut.top.tile"]]


def test_a_circle_of_three_and_one_through_a_package_are_found() -> None:
    three = HOUSE | {"top/tile.py": "import abut.top.nail", "top/nail.py": "import abut.top.roof"}
    assert circles(imports_of(three)) == [["abut.top.nail", "abut.top.roof", "abut.top.tile"]]
    package = HOUSE | {"floor/board.py": "from abut.floor import Board"}
    assert circles(imports_of(package)) == [["abut.floor", "abut.floor.board"]]
    itself = HOUSE | {"ground.py": "import abut.ground"}
    assert circles(imports_of(itself)) == [["abut.ground"]]


def test_an_import_inside_a_function_makes_no_circle() -> None:
    late = "def lay():\n    from abut.top.roof import Roof"
    assert circles(imports_of(HOUSE | {"top/tile.py": late})) == []
    method = "class Tile:\n    async def lay(self):\n        import abut.top.roof"
    assert circles(imports_of(HOUSE | {"top/tile.py": method})) == []


def test_an_import_of_a_higher_room_is_found() -> None:
    up = imports_of(HOUSE | {"floor/nail.py": "from abut.top.tile import Tile"})
    assert circles(up) == []  # of modules; the rooms are one
    assert wrong_imports(up, ORDER) == ["abut.floor.nail (floor/) imports abut.top.tile (top/)"]
    public = imports_of(HOUSE | {"ground.py": "import abut"})
    assert wrong_imports(public, ORDER) == ["abut.ground (ground.py) imports abut (__init__.py)"]


def test_a_room_that_says_nothing_is_found() -> None:
    for silent in ("", '""""""', '"""Where people walk"""', '"""They walk. They sit."""'):
        house = {"floor/__init__.py": silent, "floor/board.py": ""}
        assert unsaid(house) == ["floor/__init__.py"], silent


def test_a_hidden_submodule_is_found() -> None:
    for exported in "from abut.top.roof import tile", "from abut.ground import Stone as tile":
        assert hidden(HOUSE | {"top/__init__.py": exported}) == ["abut.top.tile"]
    assert hidden(HOUSE | {"top/__init__.py": "from abut.top import tile"}) == []  # the module


def test_a_long_file_is_found() -> None:
    line = "x = 1\n"
    house = {"a.py": line * LONGEST, "b.py": line * (LONGEST + 1), "_native.pyi": line * 999}
    assert too_long(house) == ["b.py: 401 lines"]


def test_the_map_is_read_from_its_table() -> None:
    text = "## The rooms\n\n| room | for |\n|---|---|\n| `a.py` | the ground |\n| `b/` | more |\n"
    assert map_lines(f"| `no/` | of another table |\n\n{text}\n## Else\n\n| `c/` | no |\n") == [
        ("a.py", "the ground"),
        ("b/", "more"),
    ]


def the_map() -> dict[str, str]:
    """The rooms, the lowest first, each with what it is for."""
    return dict(map_lines(PICTURED))


def circles(imported: Mapping[str, set[str]]) -> list[list[str]]:
    """Modules that import each other, directly or through others: Tarjan's components."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        path.append(module)
        for other in sorted(imported.get(module, ())):
            if other not in number:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in path:
                lowest[module] = min(lowest[module], number[other])
        if lowest[module] == number[module]:
            at = path.index(module)
            circle, path[at:] = path[at:], []
            if len(circle) > 1 or module in imported.get(module, ()):
                found.append(sorted(circle))

    for module in sorted(imported):
        if module not in number:
            visit(module)
    return sorted(found)


def wrong_imports(imported: Mapping[str, set[str]], order: list[str]) -> list[str]:
    """Return the imports of rooms that come later in the order."""
    floors = {name_of(room): i for i, room in enumerate(order)}

    def floor(module: str) -> int:
        room = module.split(".")[1] if "." in module else "__init__"
        return floors[room]

    return [
        f"{module} ({order[floor(module)]}) imports {other} ({order[floor(other)]})"
        for module in sorted(imported)
        for other in sorted(imported[module])
        if floor(other) > floor(module)
    ]


def unsaid(sources: Sources) -> list[str]:
    """Packages whose docstring does not begin with one sentence in a paragraph of its own."""
    packages = [path for path in sorted(sources) if path.endswith("__init__.py")]
    return [path for path in packages if not one_sentence(ast.parse(sources[path]))]


def one_sentence(module: ast.Module) -> bool:
    first = (ast.get_docstring(module) or "").partition("\n\n")[0]
    return bool(re.fullmatch(r"\S.*\.", first, flags=re.DOTALL)) and not any(
        before in ".!?" and after.isspace() for before, after in pairwise(first)
    )


def hidden(sources: Sources) -> list[str]:
    """Return submodules whose name in their package means something else."""
    modules = {module_of(path): path for path in sources}
    return [
        name
        for package, path in sorted(modules.items())
        if path.endswith("__init__.py")
        for statement in at_module_level(ast.parse(sources[path]))
        if isinstance(statement, ast.ImportFrom) and statement.module != package
        for alias in statement.names
        if (name := f"{package}.{alias.asname or alias.name}") in modules
    ]


def too_long(sources: Sources) -> list[str]:
    lengths = {path: len(text.splitlines()) for path, text in sorted(sources.items())}
    return [
        f"{path}: {length} lines"
        for path, length in lengths.items()
        if length > LONGEST and path != "_native.pyi"
    ]
