"""Eval Protocol itself: `make test-eval-protocol`. Elsewhere these are skipped, and say so."""

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.servers.ep_server import openenv_server

HERE = Path(__file__).parent
DATA = os.environ.get("ABUT_EVAL_PROTOCOL")
# Tests are named as modules: ours, and those of the outside data.
sys.path += [str(HERE), *([DATA] if DATA else [])]
WITHOUT_THE_PACKAGE = ("test_without.py", "test_first_imports.py")


def pytest_collection_modifyitems(items: list[Any]) -> None:
    has_package = importlib.util.find_spec("eval_protocol") is not None
    for item in items:
        if HERE not in item.path.parents or item.path.name in WITHOUT_THE_PACKAGE:
            continue
        item.add_marker(pytest.mark.eval_protocol)
        if not has_package:
            item.add_marker(pytest.mark.skip(reason="no eval_protocol: make test-eval-protocol"))


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the package keeps its store."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        patch.setenv("EP_DISABLE_AUTO_BROWSER", "1")
        yield folder


@pytest.fixture(scope="session")
def guess_server() -> Iterator[str]:
    """The OpenEnv server of `ep_tests.openenv_guess`."""
    if DATA is None:
        pytest.skip("ABUT_EVAL_PROTOCOL is unset: it names a folder that has ep_tests")
    app = "ep_tests.guess_server:app"
    with openenv_server(app, DATA) as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GUESS_URL", url)
        yield url
