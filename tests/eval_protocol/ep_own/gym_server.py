"""An environment of MCP-Gym, as Eval Protocol's base class serves it: count to ten."""

from typing import Any

from eval_protocol.mcp.adapter import EnvironmentAdapter
from eval_protocol.mcp.mcpgym import McpGym
from mcp.server.fastmcp import Context

GOAL = 10


class Counter:
    """What is added is worth as much; ten ends it, more is worth nothing."""

    def __init__(self, config: Any = None) -> None:
        self.total = 0

    def reset(self, seed: int | None = None) -> tuple[int, dict[str, Any]]:
        self.total = 0
        return self.total, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.total += action
        reward = action / GOAL if self.total <= GOAL else 0.0
        return self.total, reward, self.total >= GOAL, False, {}


class CounterGym(McpGym):
    """Serves counters, one for each session."""

    def _register_tools(self) -> None:
        @self.mcp.tool(name="add", description="Add a number to the total.")
        def add(number: int, ctx: Context) -> dict[str, Any]:
            self._get_or_create_session(ctx)
            return self._execute_session_environment_step(self._get_session_id(ctx), number)

    def format_observation(self, obs: int, env: Any) -> dict[str, Any]:
        return {"total": obs}


if __name__ == "__main__":
    CounterGym("counter", EnvironmentAdapter(env_class=Counter)).run()
