"""The tutorial on tools: played by hand, tested with a real MCP server, and one training step."""

from pathlib import Path
from typing import Any

import pytest

from tests.kit.page_run import page_blocks, run_page, same_but_for_numbers

PAGE = "tutorials/tools.md"


@pytest.mark.docs
@pytest.mark.mcp
def test_the_shop_is_played_and_tested(tmp_path: Path) -> None:
    pytest.importorskip("mcp.server", reason="make test-mcp")
    run_page(PAGE, tmp_path, differs={"pytest": same_but_for_numbers})


def test_the_shop_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hf_tokenizer: Any, tiny_model: Any
) -> None:
    pytest.importorskip("trl")
    pytest.importorskip("mcp.server", reason="make test-mcp")
    from tests.kit.training.example_run import run_block

    blocks = page_blocks(PAGE)
    shop = "\n".join(block.text for block in blocks if (block.title or "").endswith("shop.py"))
    (tmp_path / "shop.py").write_text(shop, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (train,) = (block.text for block in blocks if block.title == "train.py")
    train = train.replace("max_steps=100, logging_steps=1", "").replace("length=2048", "length=64")
    variables, (output,) = run_block(
        monkeypatch,
        train,
        hf_tokenizer,
        tiny_model(max_position_embeddings=2048),
        max_steps=1,
        per_device_train_batch_size=4,
        num_generations=4,
    )
    assert variables["trainer"].state.global_step == 1
    assert output["error"] == [None] * 4
    assert output["env_reward"] == [0.0] * 4
    prompt = hf_tokenizer.decode(output["prompt_ids"][0])
    assert '"name": "price"' in prompt
    assert '"name": "buy"' in prompt
