"""What each peer does in a turn: an environment's reply comes, and the next prompt is wanted."""

from collections.abc import Callable
from typing import TypeAlias

from abut.bench.conversation import Conversation, render
from abut.bench.figures import Row
from abut.bench.peers import PeerMissing
from abut.bench.stage import Stage
from abut.bench.trainer import trainer_stub
from abut.messages import Message

SUFFIX = "TRL _get_tool_suffix_ids"
RENDER = "apply_chat_template"
BRIDGE = "renderers bridge_to_next_turn"
TML = "tml-renderers render_for_completion"

Turn: TypeAlias = Callable[[Conversation, Message], Callable[[], list[int]]]
"""Makes what a peer does in one turn, and outside the clock what it would keep between turns."""


def peer_turns(stage: Stage, row: Row) -> dict[str, Turn]:
    """What each peer does in a turn; the row notes those that are missing."""
    makers = {SUFFIX: _suffix, BRIDGE: _bridge, TML: _tml}
    found: dict[str, Turn] = {RENDER: _render}
    for name, make in makers.items():
        try:
            found[name] = make(stage)
        except PeerMissing as missing:
            row.missing[name] = str(missing)
    return found


def _render(talk: Conversation, message: Message) -> Callable[[], list[int]]:
    messages = [*talk.messages, message]
    return lambda: render(talk.stage.hf_tokenizer, messages)


def _suffix(stage: Stage) -> Turn:
    trainer = trainer_stub(stage)

    def turn(talk: Conversation, message: Message) -> Callable[[], list[int]]:
        return lambda: trainer._get_tool_suffix_ids([message])

    return turn


def _bridge(stage: Stage) -> Turn:
    stage.require_qwen3()
    renderer = stage.peer("renderers").Qwen3Renderer(stage.hf_tokenizer)

    def turn(talk: Conversation, message: Message) -> Callable[[], list[int]]:
        prompt, sampled = talk.prompt_ids.tolist(), talk.sampled_ids.tolist()

        def next_prompt() -> list[int]:
            ids: list[int] = renderer.bridge_to_next_turn(prompt, sampled, [message]).token_ids
            return ids

        return next_prompt

    return turn


def _tml(stage: Stage) -> Turn:
    stage.require_qwen3()
    chat = stage.peer("tml-renderers", "tml_renderers.chat")
    renderer = stage.peer("tml-renderers", "tml_renderers.renderers").Qwen3()

    def turn(talk: Conversation, message: Message) -> Callable[[], list[int]]:
        messages = chat.OpenAIMessage.from_oss_messages([*talk.messages, message])

        def next_prompt() -> list[int]:
            spans, _ = renderer.render_for_completion(messages)
            return [token for span in spans for token in span.span.tokens]

        return next_prompt

    return turn
