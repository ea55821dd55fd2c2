"""Two ranks, on gloo, that share a group: each has an eval and logs of its own in one folder."""

from pathlib import Path

import pytest

from abut.demo.model import load_demo_tokenizer
from abut.template.processor import ChatTemplateProcessor
from tests.kit.training.ranks import run_ranks

pytest.importorskip("inspect_ai")
pytest.importorskip("trl")

from inspect_ai.log import read_eval_log


def test_ranks_share_a_group_and_a_folder_of_logs(tmp_path: Path) -> None:
    ranks = run_ranks("inspected", tmp_path, timeout_s=500)
    processor = ChatTemplateProcessor(load_demo_tokenizer())
    for rank in ranks:
        assert len(rank["outputs"]) == 2
        for output in rank["outputs"]:
            assert output["error"] == [None] * 6
            said = [messages[-1]["content"] for messages in output["messages"]]
            # Inspect gets the answer as a client does: without thinking.
            actions = [processor.parse_agent_output(text)[1] for text in said]
            assert output["env_reward"] == [len(action) for action in actions]
            assert len(set(actions)) == 6, "else a reward of another rollout would pass"
    ids = [id_ for rank in ranks for output in rank["outputs"] for id_ in output["rollout_id"]]
    assert len(set(ids)) == 24
    headers = [read_eval_log(str(p), header_only=True) for p in (tmp_path / "logs").iterdir()]
    assert [h.status for h in headers] == ["success"] * 4
    assert sorted(h.eval.metadata["abut_step"] for h in headers) == [0, 0, 1, 1]
    assert sum(h.results.completed_samples for h in headers if h.results) == 24
