"""Conversations to append to: a user's question, then answers of the policy and replies of a tool.

Invariant: what was sampled is what the tokenizer makes of its text, so that the render of the whole
conversation has the tokens of the trajectory, and every peer has the same work.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import abut
from abut.bench.stage import Stage
from abut.bench.texts import Replies
from abut.messages import Message


def tool_reply(text: str) -> Message:
    """What an environment answers."""
    return {"role": "tool", "name": "search", "content": text}


@dataclass
class Conversation:
    """A trajectory, and the messages that it stands for."""

    stage: Stage
    trajectory: abut.Trajectory
    messages: list[Message]
    prompt_ids: NDArray[np.int64]
    """The last request."""
    sampled_ids: NDArray[np.int64]
    """What was sampled last."""

    @classmethod
    def of_length(cls, stage: Stage, replies: Replies, tokens: int) -> "Conversation":
        """A conversation of `tokens` tokens or a few more, which ends on a sampled token."""
        trajectory = abut.Trajectory(stage.tokenizer)
        messages = [{"role": "user", "content": "Find where the time goes, and say what you see."}]
        trajectory.append_parts(stage.processor.opening(messages), provenance="prompt")
        nothing = np.empty(0, dtype=np.int64)
        self = cls(stage, trajectory, messages, nothing, nothing)
        self.answer(*replies.take(1))
        while len(trajectory) < tokens:
            reply, answer = replies.take(2)
            self.append(tool_reply(reply))
            self.answer(answer)
        return self

    def append(self, message: Message) -> None:
        """Append the environment's reply and the next generation prompt."""
        self.trajectory.append_parts(self.stage.processor.increment([message]))
        self.messages.append(message)

    def answer(self, text: str) -> None:
        """Let the policy answer: the text, then the stop token."""
        self.prompt_ids = self.trajectory.request()
        ids = self.stage.tokenizer.encode(text)
        self.sampled_ids = np.append(ids, self.stage.processor.close_token_id)
        self.trajectory.append_sampled(self.sampled_ids, logprobs(len(self.sampled_ids)))
        self.messages.append({"role": "assistant", "content": text})


def logprobs(count: int) -> NDArray[np.float32]:
    """`(count,)`, nats: all different, as a policy's are."""
    return -np.linspace(0.01, 4, count, dtype=np.float32)


def render(hf_tokenizer: Any, messages: list[Message]) -> list[int]:
    """The tokens of the whole conversation with the generation prompt, rendered from scratch."""
    ids: list[int] = hf_tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    return ids
