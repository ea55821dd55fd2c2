"""Agents that look: browser-use with a real browser, and smolagents with pictures.

The policy's texts are scripted, so that the agents get something done, and have the logprobs of a
tiny vision-language model. Each row is replayed by a plain forward with its own pictures.
"""

import asyncio
import http.server
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abut.gateway.server.gateway import Gateway
from abut.rollout.config import RolloutConfig
from abut.rollout.rollout import Rollout
from tests.kit.stage.agents import a_call, check_tree

ENVIRONMENTS = ("vision",)

Play = Callable[..., tuple[Rollout, Any]]
Text = str | Callable[[str], str]


@pytest.fixture
def plays() -> Play:
    """Plays an agent whose policy says these texts, call for call; returns rollout and sampler.

    A text may be made of the text of the prompt.
    """
    pytest.importorskip("torch")
    from tests.kit.clients.image_talks import Scoring, seeing_stage
    from tests.kit.training.vision import FAMILIES

    def play(agent: Callable[[Any], None], *texts: Text) -> tuple[Rollout, Any]:
        stage, _ = seeing_stage("qwen3_vl")
        left = iter(texts)

        def script(request: Any) -> list[int]:
            text = next(left)
            said = (
                text if isinstance(text, str) else text(stage.tokenizer.decode(request.prompt_ids))
            )
            return [*stage.tokenizer.encode(said, added="parse"), stage.processor.close_token_id]

        family = FAMILIES["qwen3_vl"]()
        sampler = Scoring(script, family=family)
        limits = RolloutConfig(max_completion_tokens=20_000)
        with Gateway(sampler=sampler, tokenizer=family.processor, config=limits) as gateway:
            agent(gateway.endpoint("a"))
            rollout = gateway.end("a", 1.0)
        assert rollout.error is None
        assert list(left) == [], "the agent asked for each text"
        check_tree(rollout, sampler.calls)
        sampler.check(rollout, *rollout.branches)
        return rollout, sampler

    return play


# ---- smolagents

CHESS = np.indices((32, 48)).sum(0)[..., None] % 2 * np.array([200, 30, 90])


def picture(step: int) -> Any:
    from PIL import Image

    return Image.fromarray((CHESS + 9 * step).astype(np.uint8))


def looks(endpoint: Any, *, keeps: bool) -> None:
    """An agent of smolagents that is shown a picture with its task, and one after each step.

    Args:
        endpoint: of the gateway.
        keeps: whether it keeps old pictures. smolagents' own browser does not.
    """
    import smolagents

    @smolagents.tool
    def press(key: str) -> str:
        """Press a key.

        Args:
            key: its name
        """
        return f"pressed {key}"

    def show(step: Any, agent: Any) -> None:
        if not keeps:
            for earlier in agent.memory.steps:
                if isinstance(earlier, smolagents.ActionStep):
                    earlier.observations_images = None
        step.observations_images = [picture(step.step_number)]

    model = smolagents.OpenAIServerModel(
        model_id=endpoint.model, api_base=endpoint.base_url, api_key=endpoint.api_key
    )
    smolagents.ToolCallingAgent(
        tools=[press], model=model, step_callbacks=[show], max_steps=4, verbosity_level=0
    ).run("What is shown?", images=[picture(0)])


PRESSES = (
    a_call("press", key="a"),
    a_call("press", key="b"),
    a_call("final_answer", answer="a board"),
)


def test_smolagents_encodes_each_picture_anew_and_goes_on(plays: Play) -> None:
    rollout, _ = plays(lambda endpoint: looks(endpoint, keeps=True), *PRESSES)
    assert (rollout.branches, len(rollout.turns)) == ([], 3)
    shown = [span.image.to_pil().tobytes() for span in rollout.images]
    assert shown == [picture(step).tobytes() for step in range(3)]
    assert rollout.dropped_images == []


def test_pictures_that_smolagents_takes_back_are_named(plays: Play) -> None:
    rollout, _ = plays(lambda endpoint: looks(endpoint, keeps=False), *PRESSES)
    assert [branch.cause for branch in rollout.branches] == ["rewritten"]
    (dropped,) = rollout.dropped_images
    assert dropped.cause == "rewritten"
    assert [image.to_pil().tobytes() for image in dropped.images] == [picture(1).tobytes()]


# ---- browser-use

PAGE = b"""<html><title>Colours</title><body style="background: #c04040">
<button onclick="document.body.style.background = '#4040c0'">Make it blue</button></body></html>"""


class Pages(http.server.BaseHTTPRequestHandler):
    """One page, with a button that changes its colour."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        found = PAGE if self.path == "/" else b""
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(found)))
        self.end_headers()
        self.wfile.write(found)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def page() -> Iterator[str]:
    """The address of the page."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


async def browse(endpoint: Any, page: str, folder: Path) -> Any:
    """Let browser-use press the button in Debian's chromium."""
    from browser_use import Agent, BrowserProfile, BrowserSession
    from browser_use.llm.openai.chat import ChatOpenAI

    llm = ChatOpenAI(
        model=endpoint.model,
        base_url=endpoint.base_url,
        api_key=endpoint.api_key,
        frequency_penalty=None,
        dont_force_structured_output=True,
        max_retries=0,
    )
    profile = BrowserProfile(
        executable_path=shutil.which("chromium"),
        headless=True,
        chromium_sandbox=False,
        user_data_dir=folder / "profile",
        viewport={"width": 320, "height": 240},
        enable_default_extensions=False,
    )
    agent = Agent(
        task="Make the page blue.",
        llm=llm,
        browser_session=BrowserSession(browser_profile=profile),
        use_vision=True,
        initial_actions=[{"navigate": {"url": page, "new_tab": False}}],
        use_judge=False,
        override_system_message="You act in a browser. Answer in JSON.",  # its own has 23 kB
        enable_signal_handler=False,
        file_system_path=str(folder),
    )
    return await agent.run(max_steps=4)


def acts(**action: Any) -> str:
    said = {"evaluation_previous_goal": "", "memory": "", "next_goal": ""}
    return json.dumps({**said, "action": [action]})


@pytest.mark.skipif(shutil.which("chromium") is None, reason="apt-get install chromium")
def test_each_step_of_browser_use_is_a_conversation_with_its_screenshot(
    plays: Play, page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANONYMIZED_TELEMETRY", "BROWSER_USE_CLOUD_SYNC", "BROWSER_USE_SETUP_LOGGING"):
        monkeypatch.setenv(name, "false")
    monkeypatch.setenv("BROWSER_USE_CONFIG_DIR", str(tmp_path / "config"))
    histories = []

    def agent(endpoint: Any) -> None:
        histories.append(asyncio.run(browse(endpoint, page, tmp_path)))

    rollout, sampler = plays(
        agent,
        lambda prompt: acts(click={"index": int(re.findall(r"\[(\d+)\]<button", prompt)[-1])}),
        acts(wait={"seconds": 0}),
        acts(done={"text": "It is blue.", "success": True}),
    )
    assert histories[0].final_result() == "It is blue."
    rows = [rollout, *rollout.branches]
    assert [branch.cause for branch in rollout.branches] == ["new", "new"]
    assert [len(row.images) for row in rows] == [1, 1, 1]
    red, *blue = (request.images[0].image for request, _ in sampler.calls)
    assert {row.images[0].image for row in rows} == {red, *blue}
    assert [red.pixels[0, 0].argmax(), blue[0].pixels[0, 0].argmax()] == [0, 2]
    first = rollout.dropped_images[0]
    assert (first.images, first.cause) == ((red,), "new")
