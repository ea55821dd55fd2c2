"""Servers of the Model Context Protocol: `make test-mcp`. Elsewhere these tests are skipped."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import abut
from abut.demo.model import ASSETS
from abut.samplers import ScriptedReplies

HERE = Path(__file__).parent

PATIENT = abut.RolloutConfig(
    retries=0, max_failed_frac=1, reset_timeout_s=500, step_timeout_s=500, max_turns=8
)
"""Servers take a while to start on a busy machine."""


def pytest_collection_modifyitems(items: list[Any]) -> None:
    has_package = importlib.util.find_spec("mcp") is not None
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.mcp)
        if not has_package:
            item.add_marker(pytest.mark.skip(reason="no mcp: make test-mcp"))


@pytest.fixture(scope="session")
def play() -> Callable[..., list[abut.Rollout]]:
    """Plays rollouts in which the policy makes these calls, one a turn, and then says "done"."""

    def played(env: Any, *calls: tuple[str, dict[str, Any]], k: int = 1, **config: Any) -> Any:
        def reply(messages: Sequence[Any], turn: int) -> Any:
            if turn >= len(calls):
                return "done"
            name, arguments = calls[turn]
            return {"content": None, "tool_calls": [{"name": name, "arguments": arguments}]}

        return abut.play(
            env,
            [{"prompt": "Begin."}],
            k=k,
            sampler=ScriptedReplies(reply),
            tokenizer=str(ASSETS),
            config=replace(PATIENT, **config),
        )

    return played
