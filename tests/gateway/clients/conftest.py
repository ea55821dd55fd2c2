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


@pytest.fixture(scope="session", autouse=True)
def _quiet(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Caches, traces and telemetry stay in a folder of the test."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUIET.items():
            patch.setenv(name, value)
        for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "DSPY_CACHEDIR"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name.lower())))
        yield


@pytest.fixture
def heard(stage: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Plays one agent, and keeps what its client asked."""
    from tests.kit.clients.conversation import Heard

    def play(agent: Any, *args: Any, **options: Any) -> Any:
        return Heard(stage, monkeypatch, agent, *args, **options)

    return play


@pytest.fixture
def trained(tmp_path: Path) -> Callable[..., Any]:
    """Trains on rollouts of one agent, and keeps the rows that the loss was taken over."""
    from tests.kit.clients.trained import Trained

    return lambda agent, says: Trained(agent, says, tmp_path / "trained")
