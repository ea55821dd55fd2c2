"""The environments of a script, for the sides that play with environments."""

from abut.messages import Message
from benchmarks.measured_conversation import tool_reply
from benchmarks.rows.rollouts.script import Script


class ScriptEnv:
    """Answers from the script; its seed is the number of the rollout."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._index = self._turn = 0
        self.reward, self.alive = 0.0, True

    def reset(self, seed: str) -> tuple["ScriptEnv", str | list[Message]]:
        """Begin the rollout that the seed names."""
        # Reset everything: trl-env plays all its rollouts one after the other in one environment.
        self._index, self._turn, self.alive = int(seed), 0, True
        return self, self._script.answer(self._index, 0)

    def step(self, action: str) -> tuple["ScriptEnv", str | list[Message]]:
        """Answer the policy's action."""
        self._turn += 1
        self.alive = self._turn < self._script.workbench.scale.turns
        return self, self._answer(action)

    def _answer(self, action: str) -> str | list[Message]:
        return self._script.answer(self._index, self._turn)


class ToolScriptEnv(ScriptEnv):
    """Parses the call that the policy wrote, and answers it."""

    def _answer(self, action: str) -> str | list[Message]:
        calls = self._script.workbench.processor.parse_tool_calls(action).calls
        return [tool_reply(self._script.search(call.arguments["query"])) for call in calls]
