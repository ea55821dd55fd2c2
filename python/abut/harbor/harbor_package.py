"""The first import of the harbor package.

Invariant: importing it makes no network request.
"""

import importlib
import os
import sys
import threading
from importlib.util import find_spec

from abut.errors import MissingExtraError
from abut.extras import require_extra

_COST_MAP = "LITELLM_LOCAL_MODEL_COST_MAP"
_lock = threading.Lock()


def require_harbor() -> None:
    """Import harbor, if it is not imported yet.

    Raises:
        MissingExtraError: harbor, or a package that abut needs with it, is not installed, or has a
            version that abut does not support.
    """
    require_extra("harbor")
    for name in ("aiohttp", "datasets"):
        if find_spec(name) is None:
            raise MissingExtraError(f"abut.harbor needs {name}: pip install 'abut[harbor]'")
    with _lock:
        _import_offline()


def _import_offline() -> None:
    """Import the modules that trials need, without litellm's request for a price list.

    Imported later, they would block the loop that all rollouts share for seconds.
    """
    is_ours = "litellm" not in sys.modules and _COST_MAP not in os.environ
    if is_ours:
        os.environ[_COST_MAP] = "True"
    try:
        importlib.import_module("litellm")
        for module in ("trial.trial", "trial.single_step", "trial.multi_step", "agents.terminus_2"):
            importlib.import_module(f"harbor.{module}")
    finally:
        if is_ours:
            os.environ.pop(_COST_MAP, None)
