"""Conversations to append to: a user's question, then answers of the policy and replies of a tool.

Invariant: what was sampled is what the tokenizer makes of its text, so that the render of the whole
conversation has the tokens of the trajectory, and every peer has the same work.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abut import Trajectory
from abut.messages import Message
from abut.rollout.conversation import Conversation
from benchmarks.texts import Replies
from benchmarks.workbench import Workbench


def tool_reply(text: str) -> Message:
    """What an environment answers."""
    return {"role": "tool", "name": "search", "content": text}


@dataclass
class MeasuredConversation:
    """A conversation, and the messages that it stands for."""

    workbench: Workbench
    conversation: Conversation
    messages: list[Message]
    prompt_ids: NDArray[np.int64]
    """The last request."""
    sampled_ids: NDArray[np.int64]
    """What was sampled last."""

    @classmethod
    def of_length(
        cls, workbench: Workbench, replies: Replies, tokens: int
    ) -> "MeasuredConversation":
        """A conversation of `tokens` tokens or a few more, which ends on a sampled token."""
        self = cls.open(workbench)
        self.answer(*replies.take(1))
        while len(self.trajectory) < tokens:
            reply, answer = replies.take(2)
            self.append(tool_reply(reply))
            self.answer(answer)
        return self

    @classmethod
    def open(cls, workbench: Workbench) -> "MeasuredConversation":
        """A conversation that begins with the user's question."""
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
        """Append the environment's reply and the next generation prompt: what `append` times."""
        self.conversation.say([message])
        self.messages.append(message)

    def answer(self, text: str) -> None:
        """Let the policy answer: the text, then the stop token."""
        self.prompt_ids = self.conversation.request()
        ids = self.workbench.tokenizer.encode(text)
        self.sampled_ids = np.append(ids, self.workbench.processor.close_token_id)
        self.conversation.hear(self.sampled_ids, logprobs(len(self.sampled_ids)))
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
