"""What travels between this process and an actor: calls and their answers, as bytes.

Bytes are sent by Ray as they are. It would look at each argument apart, and into each answer for
what it can write without pickling: of calls as small as these, that is a tenth of the CPU on both
sides.
"""

import pickle
from collections.abc import Callable
from typing import Any

from abut.agents.protocol import name_of
from abut.errors import text_of
from abut.ray.actor_host import ActorHost, is_exhausted
from abut.ray.answers import Failed
from abut.ray.package import the_ray


def packed(value: Any) -> bytes:
    """A value as bytes, classes of the main script included."""
    return the_ray().cloudpickle.dumps(value)  # type: ignore[no-any-return]


def unpacked(data: bytes) -> Any:
    """What was packed."""
    return pickle.loads(data)


def wired(method: Callable[..., Any]) -> Callable[[Any, bytes], bytes]:
    """Have a method of an actor called with its arguments packed, and its answer packed."""

    def called(self: ActorHost, arguments: bytes) -> bytes:
        answer = method(self, *unpacked(arguments))
        try:
            return packed(answer)
        except Exception as error:
            what = f"{name_of(self.made)}.{method.__name__} returned what cannot be sent back"
            is_out = is_exhausted(error)
            return packed(Failed(f"{what}: {text_of(error)}", "", is_exhausted=is_out))

    # Not `functools.wraps`: Ray looks at the parameters, and would find those of `method`.
    called.__name__, called.__qualname__ = method.__name__, method.__qualname__
    called.__doc__ = method.__doc__
    return called
