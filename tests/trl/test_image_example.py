"""The example with pictures: its game is what it says, and a real trainer plays it."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("trl")
pytest.importorskip("PIL")

import abut
from tests.kit.checkout import EXAMPLES
from tests.kit.training.example_run import run_example


def test_the_square_is_where_its_quarter_is_and_only_a_look_shows_its_colour() -> None:
    names = runpy.run_path(str(EXAMPLES / "find_square_cpu.py"))
    seen = set()
    for seed in range(40):
        env = names["FindSquare"]()
        _, (board,) = env.reset("find", seed)
        pixels = board["image"]
        assert (pixels.shape, pixels.dtype, set(pixels.ravel())) == (
            (64, 64, 3),
            np.uint8,
            {90, 230},
        )
        halves = [
            pixels[row : row + 32, column : column + 32] for row in (0, 32) for column in (0, 32)
        ]
        (at,) = (k for k, half in enumerate(halves) if half.max() == 230)
        assert (env.quarter, (halves[at] == 230).sum()) == ("1234"[at], 16 * 16 * 3)
        _, (crop,) = env.step(env.quarter)
        assert (env.reward, env.alive) == (0.5, True)
        assert {*map(tuple, crop["image"].reshape(-1, 3))} == {
            (90, 90, 90),
            names["COLOURS"][env.colour],
        }
        env.step(env.colour)
        assert (env.reward, env.alive) == (1.0, False)
        seen.add((env.quarter, env.colour))
    assert len(seen) == 16
    guesses = names["FindSquare"]()
    guesses.reset("find", 3)
    _, (crop,) = guesses.step("?" if guesses.quarter == "1" else "1")
    guesses.step(guesses.colour)
    assert (guesses.reward, guesses.alive) == (0.0, False)


def test_the_small_model_looks_at_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--max-steps", "2", "--taught-steps", "40", "--records", str(tmp_path / "kept")]
    trainer, asked = run_example(monkeypatch, "find_square_cpu.py", *words, disable_tqdm=True)
    logged = trainer.state.log_history[0]
    assert (logged["rollout/images/mean"], logged["rollout/image_tokens/mean"]) == (2, 32)
    assert (logged["rollout/turns/mean"], logged["rollout/error_frac"]) == (2, 0)
    # It was taught a little to name colours, and looks anywhere.
    assert 0.15 < logged["reward"] < 0.4
    assert asked["per_device_train_batch_size"] == 64
    records = list(abut.records.read_records(tmp_path / "kept" / "games.jsonl"))
    assert len(records) == 128
    kept = {file.stem for file in (tmp_path / "kept" / "images").iterdir()}
    assert kept == {image["hash"] for record in records for image in record["images"]}
    assert re.search(r"^step    1: mean reward 0\.\d{3}\n\Z", capsys.readouterr().out, re.MULTILINE)
