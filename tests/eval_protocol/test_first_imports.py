"""Imports inside somebody's functions are found without a call."""

from typing import Any

from abut.eval_protocol.imports import import_for, imports_of


def imports() -> Any:
    import colorsys as colours
    from os.path import join, split

    def inner() -> Any:
        from . import conftest
        from .ep_own import graph

        return conftest, graph

    raise AssertionError("called", colours, join, split, inner)


def test_all_imports_are_found_those_of_inner_functions_too() -> None:
    assert list(imports_of(imports.__code__)) == [
        (0, "colorsys", None),
        (0, "os.path", None),
        (0, "os.path", "join"),
        (0, "os.path", "split"),
        (1, "", None),
        (1, "", "conftest"),
        (1, "ep_own", None),
        (1, "ep_own", "graph"),
    ]


def test_they_are_imported_and_nothing_is_called(monkeypatch: Any) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    import_for([imports, None, print])  # what is missing raises where it is used, not here
    assert "colorsys" in sys.modules
