"""Agents as users of Harbor write them, which ask a chat endpoint; and some that fail."""

import os
import re
from typing import Any

import aiohttp
from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext


class Asking(BaseAgent):
    """Runs each answer as a command, and sends back what it printed; `done` ends."""

    def __init__(
        self, *args: Any, api_base: str, api_key: str, calls: int = 2, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.url, self.headers = (
            f"{api_base}/chat/completions",
            {"Authorization": f"Bearer {api_key}"},
        )
        self.calls = calls
        self.settings: dict[str, Any] = {}

    @staticmethod
    def name() -> str:
        return "asking"

    def version(self) -> str:
        return "1"

    async def setup(self, environment: BaseEnvironment) -> None:
        """There is nothing to install."""

    async def run(
        self, instruction: str, environment: BaseEnvironment, context: AgentContext
    ) -> None:
        messages = [{"role": "user", "content": instruction}]
        async with aiohttp.ClientSession(headers=self.headers) as session:
            for _ in range(self.calls):
                message = await self.ask(session, messages)
                if message["content"] == "done":
                    return
                result = await environment.exec(message["content"])
                messages += [message, {"role": "user", "content": f"printed: {result.stdout}"}]

    async def ask(self, session: Any, messages: list[Any]) -> dict[str, Any]:
        """Return the policy's message."""
        body = {"model": self.model_name, "messages": messages, **self.settings}
        async with session.post(self.url, json=body) as reply:
            answer = await reply.json()
            if reply.status != 200:
                raise RuntimeError(f"refused: {answer['error']['message']}")
            message = answer["choices"][0]["message"]
            self.sampled = answer["usage"]["completion_tokens"]
            return {"role": "assistant", "content": message["content"]}


class Writing(Asking):
    """Writes a byte for each token that was sampled; nothing that the policy says is run.

    The number of the task bounds its turns, so rollouts of different tasks differ.
    """

    async def run(
        self, instruction: str, environment: BaseEnvironment, context: AgentContext
    ) -> None:
        number = re.search(r"[0-9]+", instruction)
        self.settings = {"max_tokens": 2 + int(number.group() if number else 0)}
        messages = [{"role": "user", "content": instruction}]
        async with aiohttp.ClientSession(headers=self.headers) as session:
            for _ in range(self.calls):
                message = await self.ask(session, messages)
                await environment.exec(f"head -c {self.sampled} /dev/zero >> answer.txt")
                messages += [message, {"role": "user", "content": "And more?"}]


class Broken(Asking):
    """Raises once it has played."""

    async def run(
        self, instruction: str, environment: BaseEnvironment, context: AgentContext
    ) -> None:
        await super().run(instruction, environment, context)
        raise RuntimeError("boom")


class NotInstalled(Asking):
    """Cannot be set up."""

    async def setup(self, environment: BaseEnvironment) -> None:
        raise RuntimeError("no network")


class Hanging(Asking):
    """Plays, and then does not end."""

    async def run(
        self, instruction: str, environment: BaseEnvironment, context: AgentContext
    ) -> None:
        await super().run(instruction, environment, context)
        await environment.exec("exec sleep 12345")


class Redirected(Asking):
    """Asks an address of its own, as one does that ignores its arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.url = os.environ["ABUT_ELSEWHERE"]
