"""Imports: of the eval_protocol package, when it is first needed, and of users' own functions.

Invariant: importing the package makes no network request. abut changes functions of the package for
its own rollouts only: outside of them each does what it did.
"""

import dis
import functools
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from abut.errors import MissingExtraError

_COST_MAP = "LITELLM_LOCAL_MODEL_COST_MAP"
_CHANGED = "_abut_routes"
_lock = threading.Lock()


@dataclass(frozen=True)
class Route:
    """The address of one rollout's calls.

    Attributes:
        model: the name that the processor gets; it contains the rollout's id, so that no cache
            confuses the requests of two rollouts.
        base_url: the rollout's endpoint.
        api_key: the endpoint's key.
    """

    model: str
    base_url: str
    api_key: str = field(repr=False)


ROUTE: ContextVar[Route | None] = ContextVar("abut_eval_protocol_route", default=None)
"""The route of the rollout whose processor runs; None everywhere else, such as in test bodies.

A variable of the whole process, such as OPENAI_BASE_URL, would make a test's judge ask the policy.
"""


def require_package() -> None:
    """Import eval_protocol, the first time.

    Raises:
        MissingExtraError: eval_protocol, or a package that abut needs with it, is not installed.
    """
    for name in ("eval_protocol", "aiohttp", "datasets"):
        if importlib.util.find_spec(name) is None:
            raise MissingExtraError(
                f"abut.eval_protocol needs {name}: pip install 'abut[eval_protocol]'"
            )
    with _lock:
        _import_offline()
        _route_policies()
        _keep_log()


def _import_offline() -> None:
    """Import litellm without its request for prices, which takes seconds without a network."""
    is_ours = "litellm" not in sys.modules and _COST_MAP not in os.environ
    if is_ours:
        os.environ[_COST_MAP] = "True"
    try:
        importlib.import_module("eval_protocol.pytest")
        importlib.import_module("eval_protocol.mcp.execution.policy")
    finally:
        if is_ours:
            os.environ.pop(_COST_MAP, None)


def _route_policies() -> None:
    """Make the package's own policies ask their rollout's endpoint.

    Most processors make a policy with a model's name and no address. Each policy also turns on a
    cache of the process whose key has no address, so rollouts of one group would get each other's
    samples.
    """
    policy = importlib.import_module("eval_protocol.mcp.execution.policy").LiteLLMPolicy
    if getattr(policy, _CHANGED, False):
        return
    init, set_cache = policy.__init__, policy._setup_litellm_caching

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        route = ROUTE.get()
        if route is None or self.model_id != route.model:
            return
        self.base_url = route.base_url
        self.num_retries = 0  # abut retries whole rollouts instead
        self.additional_params = {
            **self.additional_params,
            "api_key": route.api_key,
            "caching": False,
            "cache": {"no-cache": True, "no-store": True},
        }

    @functools.wraps(set_cache)
    def _setup_litellm_caching(self: Any, *args: Any, **kwargs: Any) -> None:
        if ROUTE.get() is None:
            set_cache(self, *args, **kwargs)

    policy.__init__ = __init__
    policy._setup_litellm_caching = _setup_litellm_caching
    setattr(policy, _CHANGED, True)


def _keep_log() -> None:
    """Keep processors from logging, because they would write on the loop that rollouts share.

    Some write to the package's logger whatever logger they are given, and fail if it cannot write.
    `row_log` logs the rollouts instead.
    """
    default = importlib.import_module("eval_protocol.dataset_logger").default_logger
    if getattr(default, _CHANGED, False):
        return
    write: Callable[[Any], Any] = default.log

    def log(row: Any) -> Any:
        return write(row) if ROUTE.get() is None else None

    default.log = log
    setattr(default, _CHANGED, True)


def import_for(functions: Iterable[Callable[..., Any] | None]) -> None:
    """Import the modules that users' functions import, before their first call; blocks.

    A factory or a test's body often imports inside. If many threads do that at once, next to others
    that import, CPython 3.11 fails (`SystemError: AST constructor recursion depth mismatch`), and
    packages that import lazily lack names from then on. Evaluation never shows this, because it
    plays one environment after the other.

    No function is called, and an import that fails is left to the function itself.
    """
    for function in functions:
        code = getattr(function, "__code__", None)
        if code is None:
            continue
        package = getattr(function, "__globals__", {}).get("__package__")
        for level, module, name in imports_of(code):
            with suppress(Exception):
                found = importlib.import_module("." * level + module, package)
                if name is not None:
                    getattr(found, name, None)  # imports a lazy submodule


def imports_of(code: CodeType) -> Iterator[tuple[int, str, str | None]]:
    """Yield the imports of a function and of those inside it, as `(level, module, name)`."""
    level, module = 0, ""
    before: list[Any] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            level = next((value for value in reversed(before) if isinstance(value, int)), 0)
            module = instruction.argval
            yield level, module, None
        elif instruction.opname == "IMPORT_FROM":
            yield level, module, instruction.argval
        # IMPORT_NAME takes the level and the names that the two instructions before it push.
        before = [*before[-1:], instruction.argval]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from imports_of(constant)
