"""Debian's chromium, and a page in it: no network, and every request and complaint is kept.

`make test-browser` runs these tests in an environment of their own; elsewhere they are skipped.
"""

import importlib.util
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import abut
from abut.demo.model import ASSETS as DEMO
from tests.kit.clients.page import Shown

HERE = Path(__file__).parent
STEPS = "14"


def pytest_collection_modifyitems(items: list[Any]) -> None:
    has_playwright = importlib.util.find_spec("playwright") is not None
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if not has_playwright:
                item.add_marker(pytest.mark.skip(reason="no playwright: make test-browser"))


@pytest.fixture
def show(chromium: Any) -> Iterator[Callable[..., Shown]]:
    """Opens a page: of a file, or of what `abut.records.view` returns."""
    opened: list[tuple[Shown, Any]] = []

    def open_(
        page: Path | None,
        address: str = "",
        *,
        scheme: str = "light",
        width: int = 1280,
        online: bool = False,
    ) -> Shown:
        context = chromium.new_context(
            viewport={"width": width, "height": 800},
            offline=not online,
            color_scheme=scheme,
            reduced_motion="reduce",
        )
        shown = Shown(context.new_page())
        opened.append((shown, context))
        return shown if page is None else shown.open(page, address)

    yield open_
    for shown, context in opened:
        shown.check()
        context.close()


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """Writes the page of records."""

    def save(records: Any, **options: Any) -> Path:
        return abut.records.view(records, **options).save(tmp_path / "page.html")

    return save


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records of `abut demo`, really made, by a Python that has TRL."""
    python = os.environ.get("ABUT_DEMO_PYTHON")
    if python is None:
        pytest.skip("ABUT_DEMO_PYTHON is unset: it names a Python that has TRL")
    records = tmp_path_factory.mktemp("demo") / "demo.jsonl"
    command = [python, "-m", "abut.cli", "demo", "--steps", STEPS, "--records", str(records)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=500)
    said = done.stdout.splitlines()[-1]
    assert said.startswith(
        f"page            {records.with_suffix('.html')}  (open this file in a browser"
    )
    return records


@pytest.fixture(scope="session")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of records that `tests.kit.data.conversations` made, by a Python that has abut."""
    python = os.environ.get("ABUT_DEMO_PYTHON")
    if python is None:
        pytest.skip("ABUT_DEMO_PYTHON is unset: it names a Python that has TRL")
    folder = tmp_path_factory.mktemp("conversations")
    command = [python, "-m", "tests.kit.data.conversations", str(folder)]
    subprocess.run(command, check=True, timeout=300)
    return folder


@pytest.fixture(scope="session")
def demo_page(demo: Path) -> Path:
    """The page that the demo wrote at its end."""
    return demo.with_suffix(".html")


@pytest.fixture(scope="session")
def demo_records(demo: Path) -> dict[str, Any]:
    return {record["rollout_id"]: record for record in abut.records.read_records(demo)}


@pytest.fixture(scope="session")
def tokenizer() -> abut.Tokenizer:
    return abut.Tokenizer.from_file(DEMO / "tokenizer.json")
