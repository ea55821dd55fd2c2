"""OpenEnv: environments on servers, over their wire protocol, without the openenv package.

`OpenEnv` is a pool for `abut.trl.make_rollout_func`. Invariant: one session, one episode; a step is
never sent twice, and a session whose reply is missing is never used again.
"""

from abut.errors import InvalidAction, MissingExtraError

try:
    import websockets as _websockets  # noqa: F401
except ImportError as _error:
    raise MissingExtraError(
        "abut.openenv needs websockets: pip install 'abut[openenv]'"
    ) from _error

from abut.openenv.open_env import OpenEnv
from abut.openenv.target import Docker, Serve
from abut.openenv.text import call_tools, tool_message, transcript
from abut.openenv.training_trace import calls_of

__all__ = [
    "Docker",
    "InvalidAction",
    "OpenEnv",
    "Serve",
    "call_tools",
    "calls_of",
    "tool_message",
    "transcript",
]
