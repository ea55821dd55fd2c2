"""Public names of abut 0.2 that 0.3 removed or renamed, with their replacements.

Invariant: who uses an old name gets an error that says what to use instead. Names of packages,
modules, attributes, arguments and commands all read the one table `REPLACEMENTS`.
"""

import functools
from typing import Any, TypeVar

T = TypeVar("T")

MOVED = {
    "abut.errors": ("ControlTokenError", "EnvError", "MissingExtraError", "TrajectoryError"),
    "abut.parts": ("Part",),
    "abut.records": ("JsonlRecorder", "Page", "ParquetRecorder", "read_records", "view"),
    "abut.rollout.rollout": ("StopReason",),
    "abut.samplers": ("BatchSampler", "SampleRequest", "ScriptedSampler", "StreamSampler"),
    "abut.tool_calls": ("MalformedCall", "ParsedCalls"),
    "abut.trajectory": ("PROVENANCE", "Merge", "Transition", "Turn"),
}
"""Names that `abut` exported, by the module that has them now."""

_IN_A_CHECKOUT = "make bench or python -m benchmarks, in a checkout of abut"

REPLACEMENTS = {
    **{f"abut.{name}": f"{module}.{name}" for module, names in MOVED.items() for name in names},
    "abut.bench": _IN_A_CHECKOUT,
    "abut.demo.recipe": "abut.demo.model",
    "abut.records.schema": "abut.records.record",
    "abut bench": _IN_A_CHECKOUT,
    "Branch.versions": 'Branch.streams["versions"]',
    "Endpoint.counted": "Endpoint.calls",
    "Rollout.versions": 'Rollout.streams["versions"]',
    "RolloutTask.make_env": "RolloutTask.source",
    "RolloutTask.place": "RolloutTask.member",
    "RolloutTask(make_env=)": "RolloutTask(source=)",
    "RolloutTask(place=)": "RolloutTask(member=)",
    "Sample.versions": 'Sample.streams["versions"]',
    "Sample(versions=)": 'Sample(streams={"versions": …})',
    "TurnRecord.versions": 'TurnRecord.streams["versions"]',
}
"""The replacement of each old name: `abut.…` is a name or module, `abut …` a command, `A.b` an
attribute and `A(b=)` an argument."""


def removal(old: str) -> str | None:
    """Return the message for a removed name; None if abut did not remove it.

    Args:
        old: a key of `REPLACEMENTS`, or a module inside one of its modules.
    """
    while old not in REPLACEMENTS:
        old, dot, _ = old.rpartition(".")
        if not dot:
            return None
    return f"{old} was removed in 0.3\nhint: use {REPLACEMENTS[old]}"


class RemovedImports:
    """A finder, last in `sys.meta_path`, that raises the error of an import of a removed name.

    `from abut import EnvError` does not show the error of the module's `__getattr__`: Python
    discards it, and looks for a module `abut.EnvError`.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Raise the error if abut removed this module or name.

        Raises:
            ImportError: the name was removed; the error says what to use instead.
        """
        if name.startswith("abut.") and (message := removal(name)):
            raise ImportError(message, name=name)


def with_removed(cls: type[T]) -> type[T]:
    """Decorate a class so that its removed attributes and arguments raise the table's errors."""
    create: Any = cls.__init__

    @functools.wraps(create)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            create(self, *args, **kwargs)
        except TypeError:
            for name in kwargs:
                if message := removal(f"{cls.__name__}({name}=)"):
                    raise TypeError(message) from None
            raise

    def __getattr__(self: Any, name: str) -> Any:
        message = removal(f"{cls.__name__}.{name}")
        message = message or f"{cls.__name__!r} object has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=self)

    methods = [__getattr__]
    if any(old.startswith(f"{cls.__name__}(") for old in REPLACEMENTS):
        methods.append(__init__)  # not for every class, because a turn makes some of them
    for method in methods:
        setattr(cls, method.__name__, method)
    return cls
