"""`GRPOTrainer` on the GPU: an independent forward on the same device says what was sampled."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from abut.demo.model import build_demo_model  # noqa: E402
from tests.kit.stage.rollouts import Talk, env  # noqa: E402
from tests.kit.training.example_run import training_on  # noqa: E402
from tests.kit.training.replayed_run import ReplayedRun  # noqa: E402


@pytest.mark.parametrize("has_adapter", [False, True], ids=["whole model", "LoRA"])
def test_rows_are_what_an_independent_forward_says(
    has_adapter: bool, device: str, close: float, hf_tokenizer: Any, tmp_path: Path
) -> None:
    from tests.kit.training.row_cases import lora

    model = build_demo_model(hf_tokenizer)
    with torch.no_grad():
        model.lm_head.weight.mul_(20)  # so that the logprobs of different tokens differ
    run = ReplayedRun(
        hf_tokenizer,
        model,
        tmp_path,
        env(Talk),
        peft_config=lora() if has_adapter else None,
        temperature=0.7,
        **training_on(device),
    )
    run.trainer.train()
    assert run.trainer.model.device.type == device
    assert run.trainer.state.global_step == 2
    assert run.replayed > 100
    assert run.worst_replay < close
    assert run.worst_shifted > 0.1, "the control: each logprob one token late"
    assert run.worst() < 1e-3, "TRL's own logprobs of the padded batch"
