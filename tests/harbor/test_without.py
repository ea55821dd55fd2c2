"""Where Harbor is not installed, as in Python 3.11, for which there is none."""

import sys
from importlib.util import find_spec

import pytest

from abut.errors import MissingExtraError
from abut.harbor import harbor_tasks


@pytest.mark.skipif(find_spec("harbor") is not None, reason="harbor is installed")
def test_the_extra_is_named_or_the_python_that_it_needs() -> None:
    with pytest.raises(MissingExtraError) as raised:
        harbor_tasks("tasks")
    hint = "pip install 'abut[harbor]'"
    if sys.version_info < (3, 12):
        hint = "harbor needs Python 3.12 or later"
    assert str(raised.value) == f"abut.harbor needs harbor: {hint}"
