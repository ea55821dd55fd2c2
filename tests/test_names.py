"""One word for one thing: no two types have one name, and few files; docs begin with their subject.

Each checker has its negative control.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from scripts.count_lines import is_docstring
from scripts.rooms import ROOT, Sources, sources

FILES_TWICE = {
    "doctor.py": "the command, and the part of it that knows NeMo Gym",
    "gateway.py": "the command, and the gateway that it starts",
    "processor.py": "the protocols, and what implements them for templates; trl-env's name",
    "rollout.py": "a rollout; trl-env's name for what plays one",
}
"""Names that several files of the package have, each with the reason."""

NO_SUBJECT = re.compile(r"(What|Whether|Who|Those|That|Of one)\b")
RUST_TYPE = re.compile(r"^\s*(?:pub(?:\([\w:]+\))? )?(?:struct|enum|trait) (\w+)", re.MULTILINE)


def test_no_class_has_the_name_of_another() -> None:
    assert twice(classes(sources())) == {}


def test_no_type_of_the_core_has_the_name_of_another() -> None:
    assert twice(rust_types(rust(ROOT / "rust" / "core" / "src"))) == {}


def test_files_have_one_name_only_for_a_reason() -> None:
    found = file_names_twice(sources())
    assert {name: paths for name, paths in found.items() if name not in FILES_TWICE} == {}
    assert [name for name in FILES_TWICE if name not in found] == [], "stale"


def test_a_docstring_begins_with_its_subject() -> None:
    assert without_subject(docstrings(sources())) == []
    assert without_subject(doc_comments(rust(ROOT / "rust"))) == []


HOUSE = {
    "__init__.py": "",
    "floor/__init__.py": "",
    "floor/board.py": '"""Who walks."""\nclass Board:\n    width = 3\n    """That of the board."""',
    "roof/board.py": 'def f():\n    "Whoever reads this."\n    class Board: ...',
    "trl_env/tile.py": "class Board: ...",
}
CORE = {
    "a.rs": "/// A walk.\n/// That goes on.\npub(crate) struct Walk;\nenum Step {}\n",
    "b/tests.rs": "struct Walk;",
    "b.rs": "//! What walks.\ntrait Walk {}\n#[cfg(test)]\nmod tests {\n    struct Step;\n}\n",
}


def test_a_name_of_two_types_is_found() -> None:
    assert twice(classes(HOUSE)) == {"Board": ["floor/board.py", "roof/board.py"]}
    assert twice(rust_types(CORE)) == {"Walk": ["a.rs", "b.rs"]}


def test_a_name_of_two_files_is_found() -> None:
    assert file_names_twice(HOUSE) == {"board.py": ["floor/board.py", "roof/board.py"]}


def test_docs_without_a_subject_are_found() -> None:
    assert without_subject(docstrings(HOUSE)) == [
        "floor/board.py: Who walks.",
        "floor/board.py: That of the board.",
    ]
    assert without_subject(doc_comments(CORE)) == ["b.rs: What walks."]


def rust(folder: Path) -> Sources:
    files = (path for path in sorted(folder.rglob("*.rs")) if "target" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in files}


def twice(named: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return names that are given twice, each with where."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, path in named:
        found[name].append(path)
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def classes(modules: Sources) -> Iterator[tuple[str, str]]:
    """Yield each class with its file. The names of trl-env are others'."""
    for path, source in sorted(modules.items()):
        if not path.startswith("trl_env/"):
            nodes = ast.walk(ast.parse(source))
            yield from ((node.name, path) for node in nodes if isinstance(node, ast.ClassDef))


def rust_types(modules: Sources) -> Iterator[tuple[str, str]]:
    """Yield each struct, enum and trait with its file; those of tests do not count."""
    for path, source in sorted(modules.items()):
        if path.endswith("tests.rs"):
            continue
        tested = source.partition("#[cfg(test)]\nmod tests {")[0]
        yield from ((name, path) for name in RUST_TYPE.findall(tested))


def file_names_twice(modules: Mapping[str, str]) -> dict[str, list[str]]:
    paths = [path for path in sorted(modules) if not path.endswith("__init__.py")]
    return twice((path.rpartition("/")[2], path) for path in paths)


def docstrings(modules: Sources) -> Iterator[tuple[str, str]]:
    """Yield the path and text of each docstring, those of attributes too."""
    for path, source in sorted(modules.items()):
        for node in ast.walk(ast.parse(source)):
            body = getattr(node, "body", None)
            for statement in body if isinstance(body, list) else ():
                if is_docstring(statement):
                    yield path, statement.value.value.strip()


def doc_comments(modules: Sources) -> Iterator[tuple[str, str]]:
    """Yield the path and the first line of each block of doc comments."""
    for path, source in sorted(modules.items()):
        before = ""
        for line in map(str.strip, source.splitlines()):
            if line.startswith(("///", "//!")) and not before.startswith(line[:3]):
                yield path, line[3:].strip()
            before = line


def without_subject(docs: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{path}: {text.splitlines()[0]}" for path, text in docs if NO_SUBJECT.match(text)]
