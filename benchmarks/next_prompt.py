"""How each peer makes the next prompt after an environment's reply."""

from collections.abc import Callable
from typing import TypeAlias

from abut.messages import Message
from benchmarks.figures import Row
from benchmarks.measured_conversation import MeasuredConversation, render
from benchmarks.peers import PeerMissing
from benchmarks.trainer import trainer_stub
from benchmarks.workbench import Workbench

SUFFIX = "TRL _get_tool_suffix_ids"
RENDER = "apply_chat_template"
BRIDGE = "renderers bridge_to_next_turn"
TML = "tml-renderers render_for_completion"

NextPrompt: TypeAlias = Callable[[], list[int]]
"""The timed call: returns all ids of the next prompt, or for `SUFFIX` only the new ones."""
AfterReply: TypeAlias = Callable[[MeasuredConversation, Message], NextPrompt]
"""Returns the timed call for a conversation and a reply; also prepares, outside the timing, the
state that the peer would keep between turns."""


def peers_after_reply(workbench: Workbench, row: Row) -> dict[str, AfterReply]:
    """Return the call of each peer after a reply; missing peers go into `row.missing`."""
    makers = {SUFFIX: _suffix, BRIDGE: _bridge, TML: _tml}
    found: dict[str, AfterReply] = {RENDER: _render}
    for name, make in makers.items():
        try:
            found[name] = make(workbench)
        except PeerMissing as missing:
            row.missing[name] = str(missing)
    return found


def _render(conversation: MeasuredConversation, message: Message) -> NextPrompt:
    messages = [*conversation.messages, message]
    return lambda: render(conversation.workbench.hf_tokenizer, messages)


def _suffix(workbench: Workbench) -> AfterReply:
    trainer = trainer_stub(workbench)

    def after_reply(conversation: MeasuredConversation, message: Message) -> NextPrompt:
        return lambda: trainer._get_tool_suffix_ids([message])

    return after_reply


def _bridge(workbench: Workbench) -> AfterReply:
    workbench.require_qwen3()
    renderer = workbench.peer("renderers").Qwen3Renderer(workbench.hf_tokenizer)

    def after_reply(conversation: MeasuredConversation, message: Message) -> NextPrompt:
        prompt, sampled = conversation.prompt_ids.tolist(), conversation.sampled_ids.tolist()

        def next_prompt() -> list[int]:
            ids: list[int] = renderer.bridge_to_next_turn(prompt, sampled, [message]).token_ids
            return ids

        return next_prompt

    return after_reply


def _tml(workbench: Workbench) -> AfterReply:
    workbench.require_qwen3()
    chat = workbench.peer("tml-renderers", "tml_renderers.chat")
    renderer = workbench.peer("tml-renderers", "tml_renderers.renderers").Qwen3()

    def after_reply(conversation: MeasuredConversation, message: Message) -> NextPrompt:
        messages = chat.OpenAIMessage.from_oss_messages([*conversation.messages, message])

        def next_prompt() -> list[int]:
            spans, _ = renderer.render_for_completion(messages)
            return [token for span in spans for token in span.span.tokens]

        return next_prompt

    return after_reply
