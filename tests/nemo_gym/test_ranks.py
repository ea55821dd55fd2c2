"""Two ranks, one Gym, one fixed `policy_base_url`: each rank trains what it has sampled itself."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

import abut
from tests.kit.servers.free_port import free_port
from tests.kit.stage.nemo_gym import AGENTS, gym_servers, versions
from tests.kit.stage.rollouts import check_exact
from tests.kit.training.ranks import run_ranks

pytestmark = pytest.mark.nemo_gym

KEY = "a key that both have, of Gym and of training"
NAMES = ("example_session_state_mgmt", "example_multi_turn_gymnasium", "mcqa")


@pytest.fixture(scope="module", params=versions()[-1:] or ["none"])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Any:
    """What each of two ranks got in two steps."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    port = free_port()
    with gym_servers(
        request.param, f"http://127.0.0.1:{port}/v1", KEY, folder / "gym", environments=NAMES
    ) as servers:
        for name in NAMES:
            servers.file(name)
        asked = (servers.head_url, port)
        got = run_ranks("nemo_gym", folder, *asked, timeout_s=280, ABUT_GATEWAY_KEY=KEY)
    assert all(KEY not in log.read_text() for log in folder.glob("rank*.log"))
    got[0]["fixed_port"] = port
    return got


def test_one_address_serves_both(ranks: Any) -> None:
    assert ranks[0]["port"] == ranks[0]["fixed_port"] != ranks[1]["port"]
    assert [rank["peers"] for rank in ranks] == [[1], [0]]
    for number, rank in enumerate(ranks):
        assert {call[0].rpartition("r")[2] for call in rank["calls"]} == {str(number)}
        assert len(rank["calls"]) > 12


def test_no_rollout_fails_and_all_have_a_score(ranks: Any) -> None:
    agents = set()
    for rank in ranks:
        for output in rank["outputs"]:
            assert {*output["error"]} == {None}
            assert None not in output["env_reward"]
            agents |= {name.split("/")[1] for name in output if name.startswith("nemo_gym/")}
    assert agents == {AGENTS[name] for name in NAMES}


def test_each_row_is_what_its_own_rank_saw_and_sampled(ranks: Any) -> None:
    names = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
    for rank in ranks:
        for output in rank["outputs"]:
            for k, rollout_id in enumerate(output["rollout_id"]):
                own = [
                    (
                        SimpleNamespace(prompt_ids=np.asarray(prompt)),
                        SimpleNamespace(ids=np.asarray(ids), logprobs=np.float32(logprobs)),
                    )
                    for name, prompt, ids, logprobs in rank["calls"]
                    if name.startswith(f"{rollout_id}.")
                ]
                assert len(own) == output["num_turns"][k] > 0
                check_exact(abut.Columns(**{name: output[name][k] for name in names}), own)


def test_both_log_the_same_metrics(ranks: Any) -> None:
    """TRL averages over the ranks, and hangs where one has a name that the other has not."""
    for step in (0, 1):
        names = [{name for name in rank["outputs"][step] if "/" in name} for rank in ranks]
        assert names[0] == names[1]
        assert len(names[0]) >= 9
        assert names[0] <= {*ranks[0]["log"][step]}
