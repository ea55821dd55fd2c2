"""Real servers that fail while a real trainer trains: a step completes, and nothing is scored 0."""

import json
import logging
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

from transformers import TrainerCallback

import abut
from abut.gateway import Gateway
from abut.gateway.ledger.refusal import Refusal
from abut.gateway.play.agent_episode import AgentEpisode
from abut.gateway.server.registry import Registry
from abut.nemo_gym import NemoGym
from abut.rollout.config import RolloutConfig
from tests.kit.stage.agents import play_agents
from tests.kit.stage.nemo_gym import AGENTS, Plays, gym_servers, versions
from tests.kit.stage.rollouts import LIMIT_S, check_exact
from tests.kit.training.models import forced_policy
from tests.kit.training.trl_run import Run

pytestmark = pytest.mark.nemo_gym

KILLED, HANGS = AGENTS["mcqa"], "example_tool_call_multireward"
NAMES = ("mcqa", HANGS, "example_session_state_mgmt", "example_multi_turn_gymnasium")
UNVERIFIED = "example_session_state_mgmt without what its verifier needs"
GENERATIONS = 4
HANGS_S = 2.0
"""How often a rollout is asked whether it is the one that its limit is to end."""


class Faults:
    """What happens to servers when their rollouts have begun to sample.

    Attributes:
        done: what was done to which server.
        hangs: whether one is stopped.
        refused: rollouts that asked after their end, and the code that they were told.
    """

    def __init__(self, pids: dict[str, int]) -> None:
        self.pids = pids
        self.done: list[str] = []
        self.hangs = False
        self.refused: list[tuple[str, str | None]] = []

    def happen(self, prompt: str) -> None:
        """In the middle of a batch: the agent of this prompt waits for its sample."""
        self._send("head", signal.SIGKILL)
        if "boxed" in prompt:
            self._send(KILLED, signal.SIGKILL)
        if "get_weather" in prompt:
            self._send(HANGS, signal.SIGSTOP)
            self.hangs = HANGS in self.done

    def end(self) -> None:
        """The server that hangs goes on."""
        self.hangs = False
        os.kill(self.pids[HANGS], signal.SIGCONT)

    def _send(self, name: str, number: signal.Signals) -> None:
        if name not in self.done:
            self.done.append(name)
            os.kill(self.pids[name], number)


def end_only_what_hangs(patch: pytest.MonkeyPatch, faults: Faults) -> None:
    """Have limits end the rollouts whose server is stopped, once all others have ended."""
    others: set[AgentEpisode] = set()
    began: dict[AgentEpisode, float] = {}
    run = AgentEpisode.run

    async def noted(self: Any, limit: Any) -> Any:
        began[self] = time.monotonic()
        if not of_stopped(self):
            others.add(self)
        try:
            return await run(self, limit)
        finally:
            others.discard(self)

    def spared_s(self: Any) -> float:
        if faults.hangs and of_stopped(self) and not others:
            return 0.0
        return time.monotonic() - began[self]

    def of_stopped(episode: Any) -> bool:
        return bool(episode._task.columns["nemo_gym_agent"] == AGENTS[HANGS])

    patch.setattr(AgentEpisode, "run", noted)
    patch.setattr(AgentEpisode, "spared_s", spared_s)


@pytest.fixture(scope="module", params=versions() or ["none"])
def run(
    request: pytest.FixtureRequest, hf_tokenizer: Any, tokenizer: Any, tiny_model: Any,
    tmp_path_factory: Any,
) -> Iterator[Any]:  # fmt: skip
    """Two steps; in the first, each kind of server fails."""
    folder = tmp_path_factory.mktemp("faults")
    gateway = Gateway()
    gateway.start()
    alone = ["head", KILLED, HANGS]
    with (
        gym_servers(
            request.param,
            gateway.base_url,
            gateway.key,
            folder / "gym",
            environments=NAMES,
            alone=alone,
        ) as servers,
        pytest.MonkeyPatch.context() as patch,
    ):
        faults = Faults(servers.pids)
        plays = Plays(tokenizer, hf_tokenizer.eos_token_id)

        def says(sampled: Any) -> Any:
            faults.happen(hf_tokenizer.decode(sampled.prompt_ids))
            return plays(sampled)

        ledger_of = Registry.ledger_of

        async def noted(self: Any, endpoint_id: Any, *args: Any, **named: Any) -> Any:
            try:
                return await ledger_of(self, endpoint_id, *args, **named)
            except Refusal as refusal:
                faults.refused.append((endpoint_id, refusal.code))
                raise

        patch.setattr(Registry, "ledger_of", noted)
        files = [servers.file(name, servers.rows(name)[:2]) for name in NAMES]
        without = [
            {k: v for k, v in row.items() if k != "expected_count"}
            for row in servers.rows("example_session_state_mgmt")[:2]
        ]
        files.append(servers.file(UNVERIFIED, without))
        agents = [*(AGENTS[name] for name in NAMES), AGENTS["example_session_state_mgmt"]]
        gym = NemoGym(servers.head_url, check="config")
        dataset = gym.dataset(files, agent=agents)
        with forced_policy(says, drawn_tokens=8) as calls:
            run: Any = Run(
                hf_tokenizer,
                tiny_model(max_position_embeddings=4096),
                folder,
                gym,
                prompts=dataset["prompt"],
                columns={n: dataset[n] for n in dataset.column_names if n != "prompt"},
                make={
                    "config": RolloutConfig(
                        retries=0, rollout_timeout_s=HANGS_S, max_turns=2, max_failed_frac=1.0
                    ),
                    "gateway": gateway,
                },
                per_device_train_batch_size=10 * GENERATIONS,
                num_generations=GENERATIONS,
                max_completion_length=500,
            )

            class GoesOn(TrainerCallback):
                def on_step_end(self, *_: Any, **__: Any) -> None:
                    run.sampled = run.sampled or len(calls)
                    faults.end()

            run.sampled = 0
            run.trainer.add_callback(GoesOn())
            said: list[str] = []
            handler = logging.Handler()
            handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
            logging.getLogger("abut").addHandler(handler)
            with pytest.MonkeyPatch.context() as limits:  # no longer than this run
                end_only_what_hangs(limits, faults)
                run.trainer.train()
            logging.getLogger("abut").removeHandler(handler)
            run.calls, run.faults, run.gateway, run.said = calls, faults, gateway, said
            yield run
        gateway.stop()


def by_kind(run: Any, step: int) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    output = run.outputs[step]
    for k, row in enumerate(run.inputs[step]):
        said = json.loads(row["nemo_gym_row"])
        unverified = "initial_count" in said and "expected_count" not in said
        kind = UNVERIFIED if unverified else row["nemo_gym_agent"]
        found[kind].append({name: column[k] for name, column in output.items()})
    return found


def test_both_steps_complete(run: Any) -> None:
    assert run.trainer.state.global_step == 2
    assert [len(output["error"]) for output in run.outputs] == [10 * GENERATIONS] * 2
    assert {*run.faults.done} == {"head", KILLED, HANGS}


def test_what_failed_has_no_reward_and_never_0(run: Any) -> None:
    first, second = by_kind(run, 0), by_kind(run, 1)
    for step, kinds in (
        (first, (KILLED, UNVERIFIED, AGENTS[HANGS])),
        (second, (KILLED, UNVERIFIED)),
    ):
        for kind in kinds:
            failed = [r for r in step[kind] if r["nemo_gym_outcome"] == "failed"]
            assert failed, kind
            assert {r["env_reward"] for r in failed} == {None}
            # Those that had begun before their server was gone may have come to an end.
            assert len(failed) == len(step[kind]) or (kind != UNVERIFIED and step is first)


def test_a_server_that_goes_on_is_used_again(run: Any) -> None:
    played = by_kind(run, 1)[AGENTS[HANGS]]
    assert {r["nemo_gym_outcome"] for r in played} <= {"ok", "truncated"}
    assert None not in {r["env_reward"] for r in played}


def test_the_others_go_on(run: Any) -> None:
    for step in (0, 1):
        played = by_kind(run, step)
        counted = played[AGENTS["example_session_state_mgmt"]]
        # Their third call is refused: a counter that was never read has what it has.
        assert {r["nemo_gym_outcome"] for r in counted} == {"truncated"}
        assert {r["stop_reason"] for r in counted} == {"max_turns"}
        assert {r["env_reward"] for r in counted} == {1.0}
        talked = played[AGENTS["example_multi_turn_gymnasium"]]
        assert {r["nemo_gym_outcome"] for r in talked} <= {"ok", "truncated"}
        assert {r["error"] for r in talked} == {None}


def test_rows_that_are_trained_are_exact(run: Any) -> None:
    names = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
    checked = 0
    for step in (0, 1):
        for rollouts in by_kind(run, step).values():
            for rollout in rollouts:
                if rollout["env_reward"] is None:
                    continue
                own = [c for c in run.calls if c[0].rollout_id.startswith(rollout["rollout_id"])]
                last = max(c[0].rollout_id for c in own)  # of its last attempt
                own = [c for c in own if c[0].rollout_id == last]
                check_exact(abut.Columns(**{name: rollout[name] for name in names}), own)
                checked += 1
    assert checked >= 2 * 2 * GENERATIONS


def test_a_failure_says_who_failed_and_how(run: Any) -> None:
    first = by_kind(run, 0)
    killed = [r["error"] for r in first[KILLED] if r["error"]]
    assert all(KILLED in error and "cannot be reached" in error for error in killed)
    unverified = [r["error"] for r in first[UNVERIFIED] if r["error"]]
    assert all(
        "answered with status 500: body.expected_count: Field required" in e for e in unverified
    )
    assert any("still using the servers that the head named" in text for text in run.said)
    assert run.gateway.key not in "\n".join(run.said)


def test_nothing_runs_on_afterwards(run: Any) -> None:
    """What a server held up asks when that goes on; it is told that it is over, each time."""
    first = set(run.outputs[0]["rollout_id"])
    of_first = [name for name, _ in run.faults.refused if name.rpartition(".")[0] in first]
    assert of_first
    assert {code for _, code in run.faults.refused} == {"rollout_over"}
    later = [call[0].rollout_id.rpartition(".")[0] for call in run.calls[run.sampled :]]
    assert not first & {*later}
    assert run.gateway.registry.ledgers == {}


@pytest.mark.parametrize("version", versions() or ["none"])
def test_a_resources_server_that_ended_is_named_before_the_next_attempt(
    stage: Any, tmp_path: Any, version: str
) -> None:
    """Its agent asks it again without end, and says nothing."""
    name = "example_session_state_mgmt"
    server = f"{name}_resources_server"
    gateway = Gateway()
    gateway.start()
    try:
        with gym_servers(
            version, gateway.base_url, gateway.key, tmp_path, environments=[name], alone=[server]
        ) as servers:
            gym = NemoGym(servers.head_url, check="config")
            columns = [dict(row) for row in gym.dataset(servers.file(name), agent=AGENTS[name])]
            os.kill(servers.pids[server], signal.SIGKILL)
            played = play_agents(
                stage, gym, gateway=gateway, columns=columns, retries=3,
                rollout_timeout_s=LIMIT_S, max_failed_frac=1.0,
            )  # fmt: skip
    finally:
        gateway.stop()
    assert played.one.attempts == 2
    assert f"agent {AGENTS[name]} of nemo_gym cannot play: its resources server {server}" in str(
        played.one.error
    )
