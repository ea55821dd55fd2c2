"""GRPO with vLLM in two trainer processes, each with half of the model."""

from pathlib import Path

from tests.kit.training.ranks import run_ranks
from tests.kit.training.vllm_training import check_shared_engine

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
    check_shared_engine(said, STEPS)
