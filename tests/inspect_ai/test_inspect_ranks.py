"""Two ranks, on gloo, that share a group: each has an eval and logs of its own in one folder."""

from pathlib import Path

import pytest

from tests.kit.training.ranks import run_ranks

pytest.importorskip("inspect_ai")
pytest.importorskip("trl")

from inspect_ai.log import read_eval_log


def test_ranks_share_a_group_and_a_folder_of_logs(tmp_path: Path) -> None:
    ranks = run_ranks("inspected", tmp_path, timeout_s=500)
    for rank in ranks:
        assert len(rank["outputs"]) == 2
        for output in rank["outputs"]:
            assert output["error"] == [None] * 6
            assert all(reward is not None for reward in output["env_reward"])
    ids = [id_ for rank in ranks for output in rank["outputs"] for id_ in output["rollout_id"]]
    assert len(set(ids)) == 24
    headers = [read_eval_log(str(p), header_only=True) for p in (tmp_path / "logs").iterdir()]
    assert [h.status for h in headers] == ["success"] * 4
    assert sorted(h.eval.metadata["abut_step"] for h in headers) == [0, 0, 1, 1]
    assert sum(h.results.completed_samples for h in headers if h.results) == 24
