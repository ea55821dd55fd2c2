"""GRPO with vLLM in two trainer processes, each with half of the model."""

from pathlib import Path

from tests.kit.training.ranks import run_ranks

STEPS = 4


def test_both_ranks_sample_exactly_with_one_model(model_folder: Path, tmp_path: Path) -> None:
    said = run_ranks(
        "tensor_parallel",
        tmp_path,
        model_folder,
        timeout_s=300,
        TORCHDYNAMO_DISABLE="1",
        VLLM_CPU_OMP_THREADS_BIND="nobind",  # both would be bound to the same core
        VLLM_NO_USAGE_STATS="1",
    )
    for rank in said:
        assert len(rank["differences"]) == STEPS
        assert max(rank["differences"]) < 1e-5, rank["differences"]
        assert rank["errors"] == [None] * 8 * STEPS
        assert rank["turns"] == [3] * 8 * STEPS
        assert rank["is_empty"]
    assert said[0]["admitted"] == said[1]["admitted"]
    assert len(said[0]["admitted"]) == 2 * 8 * 3 * STEPS, "each rank has the turns of both"
