"""Where Harbor is not installed, as in Python 3.11, for which there is none."""

import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from abut.errors import MissingExtraError
from abut.harbor import harbor_tasks
from abut.harbor.trial_agent import _remove_key


@pytest.mark.skipif(find_spec("harbor") is not None, reason="harbor is installed")
def test_the_extra_is_named_or_the_python_that_it_needs() -> None:
    with pytest.raises(MissingExtraError) as raised:
        harbor_tasks("tasks")
    hint = "pip install 'abut[harbor]'"
    if sys.version_info < (3, 12):
        hint = "harbor needs Python 3.12 or later"
    assert str(raised.value) == f"abut.harbor needs harbor: {hint}"


def test_a_key_is_removed_from_files_and_neither_from_links_nor_from_a_sparse_terabyte(
    tmp_path: Path,
) -> None:
    for name in ("log", "elsewhere"):
        (tmp_path / name).write_text("a the-key b")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**40)
    began = time.monotonic()
    for name in ("log", "link", "pipe", "sparse"):
        _remove_key(tmp_path / name, b"the-key")
    assert time.monotonic() - began < 5
    assert (tmp_path / "log").read_text() == "a <the rollout's key> b"
    assert (tmp_path / "elsewhere").read_text() == "a the-key b"
