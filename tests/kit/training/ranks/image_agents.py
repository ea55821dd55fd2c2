"""One rank of two whose agents ask at a gateway: those of the first show screenshots.

The agents of rank 0 show their newest screenshot and the one before, so that old ones are dropped;
those of rank 1 show none, and both ranks go through the vision tower in every pass.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

from abut import RolloutConfig, agent
from abut.gateway import Gateway
from tests.kit.clients.image_pictures import as_text, encoded
from tests.kit.clients.image_talks import Asks, ChatClient, ChatShows
from tests.kit.training.image_run import ImageRun
from tests.kit.training.ranks import leave
from tests.kit.training.vision import picture

TURNS = 3


def act(endpoint: Any, pictured: bool) -> float:
    """Ask three times, with a history that has the last two screenshots; returns a reward."""
    client = ChatClient(Asks(endpoint))  # type: ignore[arg-type]
    answers: list[Any] = []
    for turn in range(TURNS):
        history: list[Any] = []
        for step in range(turn + 1):
            shown = []
            if pictured and step >= turn - 1:
                data = as_text(encoded(picture(step), compress_level=turn))
                shown = [ChatShows.image(data)]
            history.append(ChatShows.said(f"Step {step}:", *shown))
            history += answers[step : step + 1]
        answers.append(client.ask(history))
    return float(sum(map(ord, str(answers))) % 7)


def main(folder: Path) -> None:
    """Train two steps; write down what this rank got."""
    pictured = os.environ["RANK"] == "0"

    @agent
    async def steps(endpoint: Any) -> float:
        return await asyncio.to_thread(act, endpoint, pictured)

    gateway = Gateway()
    run = ImageRun(
        "qwen2_5_vl",
        folder / os.environ["RANK"],
        env=steps,
        prompts=["go"] * 4,
        make={"gateway": gateway, "config": RolloutConfig(max_turn_tokens=4, retries=0)},
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        piece=1,
        ddp_find_unused_parameters=False,
        ddp_timeout=60,
    )
    try:
        run.train()
    finally:
        gateway.stop()
    batch = run.trainer.abut_rows
    found = {
        "model": type(run.trainer.model_wrapped).__name__,
        "images": sorted({(c.purpose, c.images) for c in run.trainer.compared}),
        "worst": run.worst(),
        "causes": [[b.cause for b in r.branches] for r in batch.rollouts],
        "dropped": [[d.cause for d in r.dropped_images] for r in batch.rollouts],
        "loss": run.trainer.state.log_history[0]["loss"],
    }
    leave(folder, found)
    os._exit(0)  # the threads of gloo abort an interpreter that ends under them
