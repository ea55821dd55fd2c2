"""Two ranks on two GPUs, over NCCL, with the assertions of two ranks on the CPU."""

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

from tests.kit.training.ranks import run_ranks
from tests.trl.test_ranks import (  # noqa: F401
    read_records,
    recorded,
    test_a_group_that_the_ranks_share_has_one_seed,
    test_columns_are_those_of_the_ranks_own_rows,
    test_each_prompt_of_each_rank_has_a_row_of_its_own,
    test_metrics_are_means_over_the_ranks,
    test_scores_are_those_of_the_ranks_own_rollouts,
    test_the_records_of_both_ranks_are_one_run,
)


@pytest.fixture(scope="module")
def ranks(two_gpus: dict[str, str], device: str, tmp_path_factory: Any) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    got = run_ranks("groups", folder, "unscored", device, **two_gpus)
    got[0]["records"] = list(read_records(folder / "rollouts"))
    return got
