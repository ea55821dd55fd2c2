"""What goes wrong costs its own rollout: servers that die, what raises, what hangs."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("eval_protocol")

from ep_own.scored_game import Game
from eval_protocol.models import EvaluateResult, EvaluationRow, Message, Status
from eval_protocol.pytest import RolloutProcessor, SingleTurnRolloutProcessor, evaluation_test
from eval_protocol.pytest.openenv_rollout_processor import OpenEnvRolloutProcessor
from openenv.core import GenericEnvClient

from abut.eval_protocol import eval_test
from tests.kit.servers.ep_server import start_server
from tests.kit.servers.free_port import free_port
from tests.kit.stage.evals import play_test
from tests.kit.stage.rollouts import Stage

ASKED = [[[Message(role="user", content=text)] for text in ("well", "ill")]]


class Faulty(RolloutProcessor):
    """Asks, and then does what `fault` does in the rollouts of the row "ill"."""

    def __init__(self, fault: Any) -> None:
        self.fault = fault
        self.calls: list[str] = []

    def setup(self) -> None:
        self.calls.append("setup")

    async def acleanup(self) -> None:
        self.calls.append("acleanup")

    def cleanup(self) -> None:
        self.calls.append("cleanup")

    def __call__(self, rows: Any, config: Any) -> Any:
        async def play(row: EvaluationRow) -> Any:
            (task,) = SingleTurnRolloutProcessor()([row], config)
            played = await task
            return await self.fault(played) if row.messages[0].content == "ill" else played

        return [asyncio.create_task(play(row)) for row in rows]


def scored(processor: Any, body: Any = None, **decorated: Any) -> Any:
    """A test that gives 1, or what `body` makes of the row."""

    @evaluation_test(
        input_messages=ASKED,
        completion_params=[{"model": "openai/m"}],
        rollout_processor=processor,
        **decorated,
    )
    def test_scored(row: EvaluationRow) -> EvaluationRow:
        if body is not None:
            body(row)
        row.evaluation_result = EvaluateResult(score=1.0, reason="")
        return row

    return test_scored


async def raises(row: Any) -> Any:
    raise ValueError("broken")


async def says_so(row: EvaluationRow) -> EvaluationRow:
    row.rollout_status = Status.rollout_error("the graph failed")
    return row


async def gives_nothing(row: Any) -> Any:
    return None


async def hangs(row: Any) -> Any:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("fault", "error", "limit_s"),
    [
        (raises, "ValueError: broken", 60.0),
        (says_so, "RolloutStatusError: Faulty: the graph failed", 60.0),
        (gives_nothing, "Faulty: the task returned NoneType, not its row", 60.0),
        (hangs, "the rollout took longer than rollout_timeout_s=8", 8.0),
    ],
)
def test_a_processor_that_fails_costs_its_rollouts_alone(
    stage: Stage, fault: Any, error: str, limit_s: float
) -> None:
    processor = Faulty(fault)
    test = eval_test(scored(processor), log=None)
    batch = play_test(stage, test, retries=0, rollout_timeout_s=limit_s)
    assert batch.rewards == [1.0, 1.0, None, None]
    for rollout in batch.rollouts[2:]:
        assert error in str(rollout.error)
    assert processor.calls == ["setup", "acleanup", "cleanup"]


def test_a_processor_that_blocks_its_loop_holds_up_no_batch(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody can end it, so the batch ends beside it; from then on each has a loop of its own."""
    let_go = threading.Event()

    async def blocks(row: Any) -> Any:
        let_go.wait()
        return row

    test = eval_test(scored(Faulty(blocks)), log=None)
    with caplog.at_level(logging.WARNING, "abut"):
        batch = play_test(stage, test, retries=1, rollout_timeout_s=8)
    blocked = not let_go.is_set()
    let_go.set()
    assert blocked
    assert batch.rewards == [1.0, 1.0, None, None]
    assert "Faulty blocks its event loop. From now on abut runs each of its" in caplog.text


def test_a_processor_whose_call_blocks_holds_up_no_batch(stage: Stage) -> None:
    let_go = threading.Event()

    class Blocks(RolloutProcessor):
        def __call__(self, rows: Any, config: Any) -> Any:
            let_go.wait()
            return []

    test = eval_test(scored(Blocks()), log=None)
    batch = play_test(stage, test, retries=0, rollout_timeout_s=4, max_failed_frac=1.0)
    let_go.set()
    assert batch.rewards == [None] * 4
    assert all("rollout_timeout_s=4" in str(rollout.error) for rollout in batch.rollouts)


def test_a_processor_whose_call_raises_fails_and_says_where(stage: Stage) -> None:
    class Raises(RolloutProcessor):
        def __call__(self, rows: Any, config: Any) -> Any:
            raise KeyError("no such thing")

    test = eval_test(scored(Raises()), log=None)
    batch = play_test(stage, test, retries=0, max_failed_frac=1.0)
    assert "KeyError: 'no such thing'" in str(batch.rollouts[0].error)
    assert "test_faults.py" in batch.rollouts[0].attempt_tracebacks[0]


def test_a_body_that_hangs_gives_no_score_and_ends_no_batch(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    let_go = threading.Event()

    def hang(row: EvaluationRow) -> None:
        if row.messages[0].content == "ill":
            let_go.wait()

    test = eval_test(scored(SingleTurnRolloutProcessor(), hang), log=None, row_timeout_s=4)
    with caplog.at_level(logging.WARNING, "abut"):
        batch = play_test(stage, test, retries=0)
    let_go.set()
    assert batch.rewards == [1.0, 1.0, None, None]
    assert [rollout.failed for rollout in batch.rollouts] == [False] * 4
    said = [text for text in caplog.messages if "the test took longer than row_timeout_s=4" in text]
    assert len(said) == 1  # of two


def test_an_openenv_server_that_dies_fails_the_rollouts_that_play_on_it(stage: Stage) -> None:
    """Each plays a turn; then it is gone, and all say so; the next batch has a new one."""
    servers, port = str(Path(__file__).parent / "servers"), free_port()
    process = start_server("mini_web:app", servers, port, {})

    def build(observation: Any, step: int, history: list[str]) -> str:
        if step == 2 and history == ["Step 1: {'action_str': 'noop()'} -> reward +0.00"]:
            process.kill()
            process.wait()
        return f"{step}: {observation['text']}"

    processor = OpenEnvRolloutProcessor(
        env_factory=lambda: GenericEnvClient(
            base_url=f"http://127.0.0.1:{port}", message_timeout_s=20, connect_timeout_s=5
        ).sync(),
        prompt_builder=build,
        action_parser=lambda text: {"action_str": text},
    )
    test = eval_test(scored(processor, steps=3), log=None)
    batch = play_test(stage, test, lambda text: "noop()", retries=0, max_failed_frac=1.0)
    assert batch.rewards == [None] * 4
    assert all(rollout.failed for rollout in batch.rollouts)
    process = start_server("mini_web:app", servers, port, {})
    batch = play_test(stage, test, lambda text: "click('13')", retries=0)
    process.kill()
    process.wait()
    assert batch.rewards == [1.0] * 4


def test_an_episode_ends_and_is_scored_where_the_budget_does(stage: Stage) -> None:
    """A game that would go on; what was played until then has its score."""

    class Long(Game):
        def step(self, action: Any) -> Any:
            result = super().step(action)
            result.done = False
            return result

    processor = OpenEnvRolloutProcessor(
        env_factory=Long,
        prompt_builder=lambda observation, step, history: "go on " * 10,
        action_parser=lambda text: 1.0,
    )
    test = eval_test(scored(processor, steps=30), log=None)
    batch = play_test(stage, test, generations=1, completion=120)
    for rollout in batch.rollouts:
        assert rollout.stop_reason == "max_completion_tokens"
        assert rollout.reward == 1.0
        assert 1 < len(rollout.turns) == len(rollout.step_rewards) < 30
        assert rollout.extras["step_rewards"] == len(rollout.turns)


IN_A_PROCESS = """
import logging, socket, sys
logging.basicConfig(level=logging.WARNING)
asked = []
look_up = socket.getaddrinfo
def noting(host, *args, **kwargs):
    if host not in ("127.0.0.1", "localhost", "::1", None):
        asked.append(host)
        raise OSError("no network")
    return look_up(host, *args, **kwargs)
socket.getaddrinfo = noting
from transformers import AutoTokenizer
import abut
from abut.eval_protocol import eval_test
from abut.template.processor import ChatTemplateProcessor
from tests.kit.checkout import DEMO_ASSETS
from tests.kit.stage.evals import play_test
from tests.kit.stage.rollouts import Stage
hf = AutoTokenizer.from_pretrained(DEMO_ASSETS)
stage = Stage(abut.Tokenizer.from_pretrained(hf), ChatTemplateProcessor(hf))
test = eval_test("ep_own.two_tests:test_length")
print("rewards", play_test(stage, test).rewards)
test._log.wait()
print("looked up", asked)
"""


def test_a_store_that_cannot_be_had_costs_nothing_and_no_network_is_asked(tmp_path: Any) -> None:
    """In a process of its own: where the store's folder should be, there is a file."""
    here = Path(__file__).parent
    (tmp_path / ".eval_protocol").write_text("a file")
    environ = {name: value for name, value in os.environ.items() if "LITELLM" not in name}
    environ |= {"HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    paths = (here, here.parents[1], *filter(None, [os.environ.get("PYTHONPATH")]))
    environ["PYTHONPATH"] = os.pathsep.join(str(Path(path).resolve()) for path in paths)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IN_A_PROCESS],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert "rewards [0.046875, 0.046875, 0.046875, 0.046875]" in done.stdout, done.stderr[-3000:]
    assert "looked up []" in done.stdout
    assert done.stderr.count("a row could not be written for ep logs; training continues") == 1
