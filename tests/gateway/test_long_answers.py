"""Long answers are written beside the loop, which every rollout waits for."""

import threading
from typing import Any

import pytest

from abut.gateway.dialects.chat import Chat
from tests.kit.stage.agents import post, says, serving, user
from tests.kit.stage.rollouts import Stage


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "on_loop"),
    [
        ({"logprobs": True}, False),
        ({}, True),
        ({"logprobs": True, "max_tokens": 4}, True),
    ],
)
def test_long_logprobs_are_written_on_a_thread(
    stage: Stage,
    hf_tokenizer: Any,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any],
    on_loop: bool,
    stream: bool,
) -> None:
    """A short prompt says nothing of the answer: 30,000 tokens held the loop for 0.25 s."""
    text = "yes " * (2 if "max_tokens" in fields else 300)
    threads: list[str] = []
    name = "events" if stream else "answer"
    write = getattr(Chat, name)

    def writes(*args: Any) -> Any:
        threads.append(threading.current_thread().name)
        return write(*args)

    monkeypatch.setattr(Chat, name, writes)
    with serving(says(stage, text), hf_tokenizer) as gateway:
        url = f"{gateway.endpoint('a').base_url}/chat/completions"
        body = {"messages": [user("hi")], "stream": stream, **fields}
        if stream:
            with pytest.raises(ValueError, match="Expecting value"):  # events, and not one JSON
                post(url, gateway.key, body)
        else:
            assert post(url, gateway.key, body)[0] == 200
        rollout = gateway.end("a")
    assert (len(rollout.turns) == 1, threads[0].startswith("abut-gateway")) == (True, on_loop)
