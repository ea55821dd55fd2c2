"""docs/tutorials/several_gpus.md trains on two ranks, on gloo, with each configuration it shows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

from abut.records.read import read_records
from tests.kit.checkout import IMPORT_PATH, KIT, ROOT
from tests.kit.page_run import not_compared, page_blocks, run_page, same_but_for_numbers

PAGE = "several_gpus.md"
SHARDED = {
    "fsdp2": "FSDPQwen3ForCausalLM",
    "zero2": "DeepSpeedEngine",
    "zero3": "DeepSpeedEngine",
}
"""The model that each configuration trains, as the script says it."""


def commands(config: str) -> list[str]:
    """The first command of the page with a configuration, as words."""
    blocks = [block.text for block in page_blocks(PAGE) if f"--config_file {config}" in block.text]
    return blocks[0].replace("\\\n", "").split()


def train_on_cpus(config: str, folder: Path) -> str:
    """Run the page's command for GPUs with a small model, on CPUs; returns what it prints."""
    for block in page_blocks(PAGE):
        if block.title:
            (folder / block.title).write_text(block.text, encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([IMPORT_PATH, str(ROOT)]),
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "DS_ACCELERATOR": "cpu",
    }

    def run(*words: str) -> str:
        return subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=500,
        ).stdout

    run("small_model.py")
    words = commands(config)
    assert words[:2] == ["accelerate", "launch"]
    start = words.index("train.py")
    words[words.index("--model_name_or_path") + 1] = "small"
    words = [*words[2:start], str(KIT / "training" / "on_cpus.py"), *words[start:]]
    cpus = ["--use_cpu", "true", "--bf16", "false"]
    return run("-m", "accelerate.commands.launch", *words, *cpus)


@pytest.mark.docs
@pytest.mark.skipif(sys.platform == "win32", reason="a shell")
def test_two_processes_train_as_the_page_shows(tmp_path: Path) -> None:
    on_gpus = [
        block.text.replace("\\\n", "").strip()
        for block in page_blocks(PAGE)
        if block.language == "sh" and "Qwen/" in block.text
    ]
    assert len(on_gpus) == 7
    typed = run_page(
        PAGE,
        tmp_path,
        not_run=on_gpus,
        differs={
            "accelerate launch --config_file ddp.yaml": not_compared,
            "abut show": same_but_for_numbers,
        },
    )
    shown, printed = next(one[1:] for one in typed if one.commands.startswith("accelerate"))
    assert shown is not None
    assert shown.strip() in printed
    ranks = {record["rank"] for record in read_records(tmp_path / "rollouts")}
    assert ranks == {0, 1}


@pytest.mark.docs
def test_fsdp2_trains(tmp_path: Path) -> None:
    printed = train_on_cpus("fsdp2", tmp_path)
    assert f"2 processes trained a {SHARDED['fsdp2']}" in printed, printed
    assert (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.deepspeed
@pytest.mark.parametrize("config", ["zero2", "zero3"])
def test_deepspeed_trains(tmp_path: Path, config: str) -> None:
    pytest.importorskip("deepspeed")
    printed = train_on_cpus(config, tmp_path)
    assert f"2 processes trained a {SHARDED[config]}" in printed, printed
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_accelerate_takes_the_configurations(tmp_path: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    kinds = {}
    for block in page_blocks(PAGE):
        if block.title and "num_processes" in block.text and block.language == "yaml":
            path = tmp_path / block.title
            path.write_text(block.text, encoding="utf-8")
            kinds[block.title] = str(load_config_from_file(str(path)).distributed_type.value)
    assert kinds == {
        "ddp.yaml": "MULTI_GPU",
        "fsdp2.yaml": "FSDP",
        "zero2.yaml": "DEEPSPEED",
        "zero3.yaml": "DEEPSPEED",
    }
    (tmp_path / "ddp.yaml").write_text("distributed_type: MULTI_GPU\nnum_gpus: 2\n")
    with pytest.raises(ValueError, match="unknown keys"):
        load_config_from_file(str(tmp_path / "ddp.yaml"))


def test_trl_takes_the_options_that_the_page_sets() -> None:
    from trl import GRPOConfig, ModelConfig, TrlParser

    parser = TrlParser((GRPOConfig, ModelConfig))
    for block in page_blocks(PAGE):
        if block.language == "sh" and "train.py" in block.text:
            words = block.text.replace("\\\n", "").split()
            words = words[words.index("train.py") + 1 :]
            del words[words.index("--config") : words.index("--config") + 2]
            words += ["--output_dir", "out", *([] if "--use_cpu" in words else ["--bf16", "false"])]
            parser.parse_args_and_config(words)
