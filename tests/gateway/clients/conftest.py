"""Real clients, as people install them: `make test-agents`.

A module here names the environments that have its packages; elsewhere it is skipped.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ENVIRONMENT = os.environ.get("ABUT_AGENT_CLIENTS")

# None of them asks anything but the gateway: no prices of models, no telemetry.
QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_DISABLE_TRACKING": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "OTEL_SDK_DISABLED": "true",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "INSPECT_DISPLAY": "none",
    "LOG_AUTO_CONFIG": "false",  # of OpenHands: its root handler would outlive the captured output
    "MSWEA_SILENT_STARTUP": "1",
    "OPENHANDS_SUPPRESS_BANNER": "1",
}


def pytest_collection_modifyitems(items: list[Any]) -> None:
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.agents)
        if ENVIRONMENT is None:
            item.add_marker(pytest.mark.skip(reason="no environment of clients: make test-agents"))
        elif ENVIRONMENT not in item.module.ENVIRONMENTS:
            where = " or ".join(item.module.ENVIRONMENTS)
            item.add_marker(pytest.mark.skip(reason=f"its packages are in {where}"))


# Not for the session: other tests need the real HOME, for example rustup, when they build a wheel.
@pytest.fixture(scope="module", autouse=True)
def _quiet(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Caches, traces and telemetry stay in a folder of the test."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUIET.items():
            patch.setenv(name, value)
        for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "DSPY_CACHEDIR"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name.lower())))
        yield


@pytest.fixture
def stage(request: pytest.FixtureRequest) -> Any:
    """The demo's template, or the one that `on_each_template` names."""
    from tests.kit.clients.template_stage import stage_of

    return stage_of(getattr(request, "param", "demo"))


@pytest.fixture
def heard(stage: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Plays one agent, and keeps what its client asked."""
    from tests.kit.clients.conversation import SAYS, SAYS_PLAINLY, Heard

    def play(agent: Any, says: Any = None, *args: Any, **options: Any) -> Any:
        says = says or (SAYS if stage.takes_tools else SAYS_PLAINLY)
        return Heard(stage, monkeypatch, agent, stage.sampled(says), *args, **options)

    return play


@pytest.fixture
def holds(heard: Callable[..., Any], stage: Any) -> Callable[..., Any]:
    """Lets a client hold its conversation, which must be one, as an environment would hold it."""
    from abut import agent
    from tests.kit.clients.conversation import SYSTEM, opening

    def play(client: Any, *, stream: bool, own_words: bool = False) -> Any:
        """Play it; with `own_words` it adds some to the system prompt or to what tools return."""

        @agent
        async def solve(endpoint: Any) -> float:
            await client(endpoint, tools=stage.takes_tools, stream=stream)
            return 1.0

        one = heard(solve)
        first = replies = None
        if own_words:
            system = one.asked[0].messages[0]["content"]
            assert SYSTEM in system
            first, replies = opening(stage, system), one.replies
        one.check_same_as_env(first=first, replies=replies)
        assert {request.stream for request in one.asked} == {stream}
        return one

    return play


@pytest.fixture
def trained(tmp_path: Path) -> Callable[..., Any]:
    """Trains on rollouts of one agent, and keeps the rows that the loss was taken over."""
    from tests.kit.clients.trained import Trained

    return lambda agent, says, **options: Trained(agent, says, tmp_path / "trained", **options)
