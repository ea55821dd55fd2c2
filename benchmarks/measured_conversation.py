"""Conversations to append to: a user's question, then answers of the policy and replies of a tool.

Invariant: the sampled tokens are the tokenizer's encoding of their text, so that the rendered
conversation has the tokens of the trajectory, and every peer has the same work.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abut import Trajectory
from abut.messages import Message
from abut.rollout.conversation import Conversation
from benchmarks.texts import Replies
from benchmarks.workbench import Workbench


def tool_reply(text: str) -> Message:
    """Return an environment's reply as a message."""
    return {"role": "tool", "name": "search", "content": text}


@dataclass
class MeasuredConversation:
    """A conversation and its messages."""

    workbench: Workbench
    conversation: Conversation
    messages: list[Message]
    prompt_ids: NDArray[np.int64]
    """The prompt of the last request."""
    sampled_ids: NDArray[np.int64]
    """The last sample."""

    @classmethod
    def of_length(
        cls, workbench: Workbench, replies: Replies, tokens: int
    ) -> "MeasuredConversation":
        """Return a conversation of `tokens` tokens or a few more, which ends with a sample."""
        self = cls.open(workbench)
        self.answer(*replies.take(1))
        while len(self.trajectory) < tokens:
            reply, answer = replies.take(2)
            self.append(tool_reply(reply))
            self.answer(answer)
        return self

    @classmethod
    def open(cls, workbench: Workbench) -> "MeasuredConversation":
        """Return a conversation that begins with the user's question."""
        conversation = Conversation(workbench.tokenizer, workbench.processor)
        messages = [{"role": "user", "content": "Find where the time goes, and say what you see."}]
        conversation.open(messages)
        nothing = np.empty(0, dtype=np.int64)
        return cls(workbench, conversation, messages, nothing, nothing)

    @property
    def trajectory(self) -> Trajectory:
        """Its tokens."""
        return self.conversation.trajectory

    def append(self, message: Message) -> None:
        """Append a reply and the next generation prompt: the row `append` times this call."""
        self.conversation.say([message])
        self.messages.append(message)

    def answer(self, text: str) -> None:
        """Add an answer of the policy: the text, then the stop token."""
        self.prompt_ids = self.conversation.request()
        ids = self.workbench.tokenizer.encode(text)
        self.sampled_ids = np.append(ids, self.workbench.processor.close_token_id)
        self.conversation.hear(self.sampled_ids, logprobs(len(self.sampled_ids)))
        self.messages.append({"role": "assistant", "content": text})


@cache
def logprobs(count: int) -> NDArray[np.float32]:
    """Return `(count,)` float32, nats: all different, like a policy's.

    Cached, because making them takes 10 µs, a tenth of what abut needs for a turn.
    """
    made = -np.linspace(0.01, 4, count, dtype=np.float32)
    made.flags.writeable = False
    return made


def render(hf_tokenizer: Any, messages: list[Message]) -> list[int]:
    """Return the tokens of the whole conversation with generation prompt, rendered from scratch."""
    ids: list[int] = hf_tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    return ids
