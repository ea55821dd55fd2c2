"""`examples/wordle_grpo.py` with a real vLLM server: the game is a small one, the rest as it is."""

from pathlib import Path
from typing import Any

import pytest

from tests.kit.servers.vllm_server import VLLMServer
from tests.kit.servers.wire_server import WireServer
from tests.kit.training.example_run import CPU, SMALL, run_example
from tests.kit.training.vllm_training import DIFFERENCE, send


@pytest.mark.filterwarnings("ignore")  # of TRL and vLLM among themselves
def test_wordle_trains_on_what_the_server_sampled(
    own_server: VLLMServer, model_folder: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    from trl.generation.vllm_client import VLLMClient

    monkeypatch.setattr(VLLMClient, "init_communicator", lambda client, **_: None)
    monkeypatch.setattr(
        VLLMClient,
        "update_named_params",
        lambda client, _, params: send(own_server, tmp_path, params),
    )
    monkeypatch.chdir(tmp_path)
    with WireServer() as game:
        trainer, asked = run_example(
            monkeypatch,
            *("wordle_grpo.py", "--model", str(model_folder), "--env", game.url),
            *("--vllm-url", own_server.url, "--max-steps", "3"),
            **CPU | SMALL,
        )
    assert asked["vllm_server_base_url"] == own_server.url
    logs = [log for log in trainer.state.log_history if DIFFERENCE in log]
    assert [log["rollout/turns/mean"] for log in logs] == [3, 3, 3]
    assert max(log[DIFFERENCE] for log in logs) < 1e-5
