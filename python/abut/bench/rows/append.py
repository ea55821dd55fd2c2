"""A turn: the environment's reply is appended to a conversation, the template included.

abut and TRL tokenize what is new. The other peers give the whole next prompt, so beside the append
stands the append with `request()`, which hands all ids over as one array.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

from abut.bench.conversation import Conversation, render, tool_reply
from abut.bench.figures import Row, require_same
from abut.bench.peers import PeerMissing
from abut.bench.stage import Stage
from abut.bench.texts import Replies
from abut.bench.timing import Check, Sides, interleave, together
from abut.bench.trainer import trainer_stub
from abut.env import Message

ABUT, REQUEST = "abut", "abut and request()"
SUFFIX = "TRL _get_tool_suffix_ids"
RENDER = "apply_chat_template"
BRIDGE = "renderers bridge_to_next_turn"
TML = "tml-renderers render_for_completion"

Turn: TypeAlias = Callable[[Conversation, Message], Callable[[], list[int]]]
"""Makes what a peer does in one turn, and outside the clock what it would keep between turns."""


def measure(stage: Stage) -> Row:
    """Append replies to conversations of several lengths."""
    scale = stage.scale
    row = Row(
        "append",
        f"append an environment's reply of {scale.reply_bytes:,} bytes, template included",
        equal="the token ids of the whole next prompt (of TRL: the new ones), after every append",
        notes=[
            "Every reply is another text. abut and TRL tokenize the new message alone; the other "
            "peers give the whole next prompt, as `request()` does, which copies all ids into an "
            "array.",
            "tml-renderers gets its messages in its own type; making them is not counted.",
        ],
    )
    peers = _peers(stage, row)
    replies = Replies(2, scale.reply_bytes)
    for length in scale.lengths:
        rounds = []
        for _ in range(scale.conversations):
            conversation = Conversation.of_length(stage, replies, length)
            texts = replies.take(2 * scale.replies + 2)
            rounds.append(interleave(_turns(conversation, texts, peers), scale.replies))
        taken = together(rounds)
        pairs = zip(taken[ABUT], taken.pop(REQUEST), strict=True)
        taken[REQUEST] = [append + request for append, request in pairs]
        row.add(case(length), taken, tokens=length)
    _require(row, scale.lengths)
    return row


def case(length: int) -> str:
    """The name of a length."""
    return f"to {length:,} tokens"


def _turns(
    conversation: Conversation, texts: list[str], peers: dict[str, Turn]
) -> Callable[[int], tuple[Sides, Check]]:
    """One round is one turn; what renders the whole takes part in every fourth."""
    trajectory, processor = conversation.trajectory, conversation.stage.processor
    replies, answers = texts[::2], texts[1::2]

    def prepare(number: int) -> tuple[Sides, Check]:
        message = tool_reply(replies[number + 1])
        before = len(trajectory)
        sides: dict[str, Callable[[], Any]] = {
            ABUT: lambda: trajectory.append_parts(processor.increment([message])),
            REQUEST: trajectory.request,
        }
        for name, turn in peers.items():
            if name in (SUFFIX, BRIDGE) or number % 4 == 0:
                sides[name] = turn(conversation, message)

        def check(results: dict[str, Any]) -> None:
            whole = results[REQUEST]
            for name in results.keys() - {ABUT, REQUEST}:
                ours = whole[before:] if name == SUFFIX else whole
                require_same(f"the prompt behind {before} tokens", name, ours, results[name])
            conversation.messages.append(message)
            conversation.answer(answers[number + 1])

        return sides, check

    return prepare


def _peers(stage: Stage, row: Row) -> dict[str, Turn]:
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


def _require(row: Row, lengths: tuple[int, ...]) -> None:
    first, last = lengths[0], lengths[-1]
    for length in (first, 30_000, last):
        if length in lengths:
            row.need_faster(SUFFIX, case(length), 20)
    growth = f"abut {case(last)} ÷ {case(first)}"
    row.need_ratio(growth, (ABUT, case(last)), (ABUT, case(first)), "at most", 1.2)
    for peer, times in ((RENDER, 2_000), (BRIDGE, 30), (TML, 500)):
        row.need_faster(peer, case(last), times)
