"""The examples of docs/tools.md train."""

import functools
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
trl = pytest.importorskip("trl")

import abut.trl  # noqa: E402

DOCS = Path(__file__).parents[1] / "docs" / "tools.md"
BLOCKS = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
SETTINGS = {
    "use_cpu": True,
    "bf16": False,
    "max_steps": 1,
    "per_device_train_batch_size": 4,
    "num_generations": 4,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
}


@pytest.mark.parametrize(
    ("block", "texts"),
    [
        (0, ["What is a dozen times 3?<|im_end|>", '"name": "multiply"', '"name": "search"']),
        (1, ["Begin. Count to 3.<|im_end|>", '"name": "increment"']),
    ],
    ids=["functions", "environment class"],
)
def test_an_example_trains(
    hf_tokenizer: Any,
    tiny_model: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    block: int,
    texts: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    small = {"model": tiny_model(max_position_embeddings=2048), "processing_class": hf_tokenizer}
    GRPOTrainer = trl.GRPOTrainer
    monkeypatch.setattr(trl, "GRPOTrainer", lambda **given: GRPOTrainer(**given | small))
    monkeypatch.setattr(trl, "GRPOConfig", functools.partial(trl.GRPOConfig, **SETTINGS))
    outputs: list[Any] = []
    call = abut.trl.RolloutFunc.__call__

    def keep(self: Any, prompts: Any, trainer: Any) -> Any:
        outputs.append(call(self, prompts, trainer))
        return outputs[-1]

    monkeypatch.setattr(abut.trl.RolloutFunc, "__call__", keep)
    variables: dict[str, Any] = {}
    code = BLOCKS[block].replace("max_completion_length=1024", "max_completion_length=64")
    exec(compile(code, "tools.md", "exec"), variables)
    assert variables["trainer"].state.global_step == 1
    (output,) = outputs
    assert output["error"] == [None] * 4
    assert output["env_reward"] == [0.0] * 4
    prompt = hf_tokenizer.decode(output["prompt_ids"][0])
    for text in texts:
        assert text in prompt
    assert ("environments" in output) == (block == 1)
