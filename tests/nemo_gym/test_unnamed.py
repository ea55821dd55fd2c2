"""Requests of agents that leave out the rollout's id: matched by what was said, never guessed."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from abut.gateway import Gateway
from abut.gateway.ledger.unnamed import Unnamed
from abut.nemo_gym import NemoGym
from abut.rollout.rollout import Rollout
from tests.kit.servers.fake_gym import Answer, FakeGym, Policy, Run, verified
from tests.kit.stage.agents import check_tree, play_agents
from tests.kit.stage.nemo_gym import gym_servers, versions
from tests.kit.stage.rollouts import LIMIT_S, Recording


def a_row(text: str, agent: str = "a") -> str:
    return json.dumps({"responses_create_params": {"input": text}, "agent_ref": {"name": agent}})


def played(
    stage: Any, run: Run, *questions: str, says: Any = None, config: Any = None, **options: Any
) -> list[Rollout]:
    """Play a row of agent `a` for each question."""
    gateway = Gateway()
    gateway.start()
    gym = FakeGym({"a": run}, base_url=gateway.base_url, key=gateway.key, config=config)
    with gym:
        agent = NemoGym(gym.url, check=None)
        try:
            return play_agents(
                stage,
                *[agent] * len(questions),
                sampler=Recording(says or stage.says("yes")),
                gateway=gateway,
                columns=[{"nemo_gym_row": a_row(question)} for question in questions],
                **{"retries": 0, "max_failed_frac": 1.0} | options,
            ).rollouts
        finally:
            gateway.stop()


def question_of(body: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": body["responses_create_params"]["input"]}]


def test_a_second_request_without_an_id_goes_on_with_its_history(stage: Any) -> None:
    async def drops_the_id(policy: Policy, body: Any) -> Answer:
        talk = question_of(body)
        talk += [await policy.ask(talk), {"role": "user", "content": "again"}]
        policy.rollout_id = None
        await policy.ask(talk)
        return verified(policy)

    rollouts = played(stage, drops_the_id, "one?", "two?", "three?")
    assert [(r.error, r.reward, len(r.turns)) for r in rollouts] == [(None, 1.0, 2)] * 3
    assert [rollout.branches for rollout in rollouts] == [[]] * 3


def test_a_harness_that_names_nothing_is_known_by_its_question(stage: Any) -> None:
    async def names_nothing(policy: Policy, body: Any) -> Answer:
        policy.rollout_id = None
        talk = [{"role": "system", "content": "Be brief."}, *question_of(body)]
        talk += [await policy.ask(talk), {"role": "user", "content": "again"}]
        await policy.ask(talk)
        return verified(policy)

    rollouts = played(stage, names_nothing, "one?", "two?")
    assert [(r.error, r.reward, len(r.turns)) for r in rollouts] == [(None, 1.0, 2)] * 2


def test_a_request_that_fits_two_rollouts_waits_until_one_has_moved_on(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have the same history; the one that names itself moves on when the other one waits."""
    waits, both = asyncio.Event(), asyncio.Barrier(2)
    loops: list[asyncio.AbstractEventLoop] = []
    candidates = Unnamed._candidates

    def noted(self: Unnamed, *args: Any) -> Any:
        found = candidates(self, *args)
        if len(found) > 1:
            loops[0].call_soon_threadsafe(waits.set)
        return found

    monkeypatch.setattr(Unnamed, "_candidates", noted)
    first: list[str | None] = []

    async def run(policy: Policy, body: Any) -> Answer:
        loops.append(asyncio.get_running_loop())
        first.append(policy.rollout_id)
        is_named = len(first) == 1
        talk = question_of(body)
        talk += [await policy.ask(talk), {"role": "user", "content": "again"}]
        await both.wait()
        if is_named:
            await waits.wait()
        else:
            policy.rollout_id = None
        await policy.ask(talk)
        return verified(policy, 1.0 if is_named else 0.0)

    rollouts = played(stage, run, "same?", "same?")
    assert [(r.error, len(r.turns), r.branches) for r in rollouts] == [(None, 2, [])] * 2
    assert sorted(rollout.reward or 0.0 for rollout in rollouts) == [0.0, 1.0]


def test_what_stays_ambiguous_is_refused_and_says_so(stage: Any) -> None:
    refused: list[Any] = []
    both = asyncio.Barrier(2)

    async def run(policy: Policy, body: Any) -> Answer:
        talk = question_of(body)
        talk += [await policy.ask(talk), {"role": "user", "content": "again"}]
        await both.wait()
        policy.rollout_id = None
        refused.append(await policy.post({"messages": talk}))
        await both.wait()
        return 500, "refused"

    played(stage, run, "same?", "same?", turn_timeout_s=stage_limit())
    assert [status for status, _ in refused] == [400, 400]
    for _, said in refused:
        assert said["error"]["message"].startswith(
            "two rollouts of a have this history, and the request does not say which one it "
            "belongs to\nhint: "
        )


def stage_limit() -> float:
    return LIMIT_S


def test_a_refinement_that_quotes_the_answer_is_its_rollouts(stage: Any) -> None:
    """As proof_refinement_agent: a prompt of its own, and no metadata."""

    async def refines(policy: Policy, body: Any) -> Answer:
        answer = await policy.ask(question_of(body))
        policy.rollout_id = None
        await policy.ask([{"role": "user", "content": f"Fix it:\n{answer['content']}\nIt failed."}])
        return verified(policy)

    def says(request: Any) -> list[int]:
        text = f"proof of {request.rollout_id}"
        return [*stage.tokenizer.encode(text), stage.processor.close_token_id]

    kind = {"a": {"responses_api_agents": {"proof_refinement_agent": {}}}}
    rollouts = played(stage, refines, "one?", "one?", "two?", says=says, config=kind)
    assert [(r.error, r.reward) for r in rollouts] == [(None, 1.0)] * 3
    assert [len(rollout.turns) + len(rollout.branches) for rollout in rollouts] == [2] * 3
    others = played(stage, refines, "one?", says=says)
    assert [rollout.failed for rollout in others] == [True]


def test_the_true_reason_is_given_where_nothing_fits(
    stage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def asks_something_else(policy: Policy, body: Any) -> Answer:
        policy.rollout_id = None
        await policy.post({"messages": [{"role": "user", "content": "Solve task 7."}]})
        return 200, {"reward": 0.0, "response": {"output": []}}

    (rollout,) = played(stage, asks_something_else, "one?")
    assert "1 request without a rollout id was refused" in (rollout.error or "")
    assert (
        "a request of 1 message, first user 'Solve task 7.': the request names no rollout"
        in rollout.error
    )
    assert "policy_base_url" not in rollout.error
    assert "0 were matched to a rollout by their history, 1 were refused" in caplog.text


@contextmanager
def lean() -> Iterator[int]:
    """A stand-in for the sandbox of math_formal_lean, on the port that it yields.

    The real one is a container with Lean; a proof is right here if it ends in `rfl`.
    """

    class Sandbox(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            code = json.loads(self.rfile.read(int(self.headers["content-length"])))
            is_right = code["generated_code"].endswith("rfl")
            said = {
                "process_status": "completed" if is_right else "failed",
                "stdout": "",
                "stderr": "" if is_right else "error: unsolved goals",
            }
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(said).encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Sandbox)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.nemo_gym
@pytest.mark.parametrize("version", versions() or ["none"])
def test_a_real_refinement_agent_scores_what_its_last_proof_earned(
    stage: Any, tmp_path: Path, version: str
) -> None:
    """proof_refinement_agent names the rollout in its first request only."""
    name, agent = "math_formal_lean", "math_formal_lean_refinement_agent"
    right_at = {"r0": 1, "r1": 2, "r2": 3, "r3": None, "r4": 2}
    """The proof that is right; three are tried."""
    tried: dict[str, int] = {}

    def says(request: Any) -> Any:
        rollout = request.rollout_id.partition("-")[0]
        tried[rollout] = tried.get(rollout, 0) + 1
        end = "rfl" if tried[rollout] == right_at[rollout] else "sorry"
        return stage.says(f"```lean4\ntry {rollout} {tried[rollout]}\n{end}\n```")(request)

    gateway = Gateway()
    gateway.start()
    sampler = Recording(says)
    try:
        with (
            lean() as port,
            gym_servers(
                version,
                gateway.base_url,
                gateway.key,
                tmp_path / "gym",
                environments=[],
                more_configs=[f"resources_servers/{name}/configs/{name}_multi_turn.yaml"],
                overrides={name: {"resources_servers": {name: {"sandbox_port": port}}}},
            ) as servers,
        ):
            gym = NemoGym(servers.head_url)
            row = dict(gym.dataset(servers.file(name), agent=agent)[0])
            played = play_agents(
                stage,
                *[gym] * len(right_at),
                sampler=sampler,
                gateway=gateway,
                columns=[row] * len(right_at),
                retries=0,
                completion=4000,
            ).rollouts
    finally:
        gateway.stop()
    assert [(r.error, r.reward) for r in played] == [
        (None, 0.0 if right is None else 1.0) for right in right_at.values()
    ]
    for rollout, right in zip(played, right_at.values(), strict=True):
        own = [c for c in sampler.calls if c[0].rollout_id.startswith(rollout.rollout_id)]
        assert len(own) == 1 + len(rollout.branches) == (right or 3)
        check_tree(rollout, own)
