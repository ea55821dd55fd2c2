"""The examples of docs/how-to/tools.md train."""

from pathlib import Path
from typing import Any

import pytest

from tests.kit.training.example_run import blocks_of, run_block

pytest.importorskip("torch")
pytest.importorskip("trl")


@pytest.mark.parametrize(
    ("block", "texts"),
    [
        (0, ["What is a dozen times 3?<|im_end|>", '"name": "multiply"', '"name": "search"']),
        (3, ["Begin. Count to 3.<|im_end|>", '"name": "increment"']),
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
    code = blocks_of("how-to/tools.md")[block].replace("length=1024", "length=64")
    variables, outputs = run_block(
        monkeypatch,
        code,
        hf_tokenizer,
        tiny_model(max_position_embeddings=2048),
        max_steps=1,
        per_device_train_batch_size=4,
        num_generations=4,
    )
    assert variables["trainer"].state.global_step == 1
    (output,) = outputs
    assert output["error"] == [None] * 4
    assert output["env_reward"] == [0.0] * 4
    prompt = hf_tokenizer.decode(output["prompt_ids"][0])
    for text in texts:
        assert text in prompt
    assert ("environments" in output) == (block == 3)
