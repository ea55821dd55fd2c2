"""Two ranks, on gloo: each prompt has one row, and a group is a group wherever it is played."""

from collections import Counter, defaultdict
from typing import Any

import pytest

from tests.kit.training.ranks import run_ranks

pytest.importorskip("torch")
pytest.importorskip("trl")

from abut.records.read import read_records
from abut.trl.version import NONE_IS_UNSCORED, trl_version

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: Any) -> list[dict[str, Any]]:
    """What each of two ranks got in two steps and one evaluation."""
    folder = tmp_path_factory.mktemp("ranks")
    on_failure = "unscored" if trl_version() >= NONE_IS_UNSCORED else "zero"
    got = run_ranks("groups", folder, on_failure)
    got[0]["records"] = list(read_records(folder / "rollouts"))
    return got


@pytest.fixture(scope="module")
def recorded(ranks: Any) -> list[Any]:
    """The records of both."""
    records: list[Any] = ranks[0]["records"]
    return records


def test_each_prompt_of_each_rank_has_a_row_of_its_own(ranks: Any) -> None:
    ids = [i for rank in ranks for output in rank["outputs"] for i in output["rollout_id"]]
    assert len(set(ids)) == len(ids) == 2 * 3 * 3
    for rank in ranks:
        for output in rank["outputs"]:
            assert {len(values) for values in output.values()} == {3}


def test_a_group_that_the_ranks_share_has_one_seed(ranks: Any) -> None:
    """Six prompts a step, p p q | q r r: three groups, of which both ranks play the second."""
    seeds: dict[tuple[int, str], set[int]] = defaultdict(set)
    for step in range(2):
        prompts = [rank["outputs"][step]["prompts"] for rank in ranks]
        assert prompts[0][2] == prompts[1][0]
        assert len({*prompts[0], *prompts[1]}) == 3
        for rank, expected in zip(ranks, prompts, strict=True):
            got = rank["got"][3 * step : 3 * step + 3]
            assert sorted(reset["seed"] for reset in got) == sorted(expected)
            for reset in got:
                seeds[step, reset["seed"]].add(reset["episode_seed"])
    assert [len(group) for group in seeds.values()] == [1] * 6
    assert len(set.union(*seeds.values())) == 6


def test_the_records_of_both_ranks_are_one_run(ranks: Any, recorded: Any) -> None:
    ids = {i for rank in ranks for output in rank["outputs"] for i in output["rollout_id"]}
    assert {record["rollout_id"] for record in recorded} == ids
    assert len({record["run_id"] for record in recorded}) == 1
    groups = Counter((r["step"], r["mode"], r["group"]) for r in recorded)
    assert set(groups.values()) == {2}
    played_by = defaultdict(set)
    for record in recorded:
        played_by[record["step"], record["mode"], record["group"]].add(record["rank"])
    assert {0, 1} in played_by.values(), "the ranks share a group"


def test_scores_are_those_of_the_ranks_own_rollouts(recorded: Any) -> None:
    for record in recorded:
        if record["mode"] == "train" and record["reward"] is not None:
            assert record["rewards"] == {"env_reward": pytest.approx(record["reward"])}
    groups = defaultdict(list)
    for record in recorded:
        if record["mode"] == "train" and record["reward"] is not None:
            groups[record["step"], record["group"]].append(record)
    for one, two in (group for group in groups.values() if len(group) == 2):
        better = one["reward"] - two["reward"]
        assert (one["advantage"] - two["advantage"]) * better > 0 or better == 0


def test_columns_are_those_of_the_ranks_own_rows(ranks: Any) -> None:
    for rank in ranks:
        assert len(rank["got"]) == 9
        assert all(reset["seed"] == f"p{reset['level']}" for reset in rank["got"])


def test_metrics_are_means_over_the_ranks(ranks: Any) -> None:
    """Rank 1 has a reason to stop that rank 0 does not have; nobody waits for its name."""
    errors = [rank["outputs"][0]["stop_reason"].count("error") for rank in ranks]
    assert errors == [0, 1]
    if trl_version() >= (1, 0):
        logged = ranks[0]["log"][0]
        assert logged["rollout/stop/error"] == pytest.approx(1 / 6)
        assert logged["rollout/stop/env_done"] == pytest.approx(5 / 6)
