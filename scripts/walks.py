"""List the files that a value walks through in docs/background/architecture.md.

Each walk runs one call with `sys.setprofile` in all threads, and notes each file of the package
whose code runs between two events, in the order of entry. The last event is `Trajectory.columns` of
the core, which makes a row.
"""

import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import abut

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(abut.__file__).parent
PAGE = ROOT / "docs" / "background" / "architecture.md"
BEGIN, END = "<!-- begin walks -->\n", "<!-- end walks -->\n"
BY_CHANCE = {"gateway/play/played_agent.py"}
"""Files that other threads may run at the same time; the value does not pass through them."""


class Walk:
    """The files of the package that run between `begin` and the row, in the order of entry.

    A thread is profiled only if it starts inside, so all that starts threads is called inside.
    """

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self._goes_on = False

    def __enter__(self) -> "Walk":
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def begin(self) -> None:
        """Start to note files."""
        self._goes_on = True

    def _note(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call" and getattr(arg, "__name__", "") == "columns":
            self._goes_on = False
        elif self._goes_on and event == "call":
            name = frame.f_code.co_filename
            if name.startswith(str(PACKAGE)):
                self.files[Path(name).relative_to(PACKAGE).as_posix()] = None


def reply_to_columns() -> list[str]:
    """Walk from the reply of an environment's `step` to the `completion_ids` of its rollout."""
    from abut.envs.task import RolloutTask
    from abut.rollout.config import RolloutConfig
    from abut.rollout.engine import Engine
    from abut.samplers.scripted import ScriptedSampler

    walk = Walk()

    class Env:
        reward, alive = 1.0, True

        def reset(self, seed: str) -> tuple["Env", str]:
            return self, "go on"

        def step(self, action: str) -> tuple["Env", str]:
            self.alive = False
            walk.begin()
            return self, "done"

    tokenizer, processor, ids = demo()
    config = RolloutConfig(max_completion_tokens=200)
    with walk:
        engine = Engine(tokenizer, processor, ScriptedSampler(lambda _: ids), config)
        (rollout,) = engine.run([RolloutTask(0, "r0", Env, messages=[], seed="", episode_seed=0)])
    assert rollout.columns is not None
    return [*walk.files]


def request_to_row() -> list[str]:
    """Walk from a chat request to the row of its rollout: only the files of the gateway."""
    from abut.agents import agent
    from abut.envs.task import RolloutTask
    from abut.gateway import Gateway
    from abut.gateway.play.played_agent import AgentSource
    from abut.rollout.config import RolloutConfig
    from abut.rollout.engine import Engine
    from abut.samplers.scripted import ScriptedSampler

    walk = Walk()

    @agent
    def asks(endpoint: Any) -> float:
        request = urllib.request.Request(
            f"{endpoint.base_url}/chat/completions",
            b'{"model": "abut", "messages": [{"role": "user", "content": "hello"}]}',
            {"Authorization": f"Bearer {endpoint.api_key}", "Content-Type": "application/json"},
        )
        walk.begin()
        with urllib.request.urlopen(request) as answer:
            answer.read()
        return 1.0

    tokenizer, processor, ids = demo()
    config = RolloutConfig(max_completion_tokens=200)
    with walk:
        gateway = Gateway()
        try:
            engine = Engine(tokenizer, processor, ScriptedSampler(lambda _: ids), config)
            source: Any = AgentSource(asks, gateway).bind(processor)
            gateway.registry.join_run("run0")
            (rollout,) = engine.run(
                [RolloutTask(0, "r0-run0", source, messages=[], seed="", episode_seed=0)]
            )
        finally:
            gateway.stop()
    assert rollout.reward == 1.0
    return [name for name in walk.files if name.startswith("gateway/")]


def text_to_ids() -> list[str]:
    """Walk through one `Tokenizer.encode`."""
    tokenizer, _, _ = demo()
    walk = Walk()
    with walk:
        walk.begin()
        tokenizer.encode("a few words")
    return [*walk.files]


def demo() -> tuple[Any, Any, list[int]]:
    """Return the demo's tokenizer and processor, and the ids of one answer."""
    from transformers import AutoTokenizer

    import abut

    hf_tokenizer = AutoTokenizer.from_pretrained(PACKAGE / "demo" / "assets")
    tokenizer = abut.Tokenizer.from_pretrained(hf_tokenizer)
    processor = abut.ChatTemplateProcessor(hf_tokenizer)
    return tokenizer, processor, [*tokenizer.encode("yes"), hf_tokenizer.eos_token_id]


WALKS: dict[str, Callable[[], list[str]]] = {
    "An environment's reply to `completion_ids`": reply_to_columns,
    "A chat request to its row, in `gateway/`": request_to_row,
    "A text to its ids": text_to_ids,
}


def walks() -> str:
    """Return the walks as Markdown for the page."""
    lines = []
    for name, walked in WALKS.items():
        files = [file for file in walked() if file not in BY_CHANCE]
        where = " → ".join(f"`{file}`" for file in files)
        lines.append(
            f"- {name}: {where or 'no Python file, the core alone'} ({len(files)} files).\n"
        )
    return BEGIN + "".join(lines) + END


def main() -> None:
    """Update the walks in the page."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + walks() + after, "utf-8")


if __name__ == "__main__":
    main()
