"""Pages that train are run by `make test-docs` alone."""

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "ABUT_DOCS" not in os.environ:
        skip = pytest.mark.skip(reason="ABUT_DOCS is unset: make test-docs runs it")
        for item in items:
            if item.get_closest_marker("docs"):
                item.add_marker(skip)
