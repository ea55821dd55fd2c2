"""A conversation: open, request, hear, reply, fork."""

import sys
from typing import Any

import numpy as np
import pytest

from abut.errors import SamplerError, TemplateError, TrajectoryError
from abut.rollout.budget import Budget
from abut.rollout.conversation import Conversation
from abut.rollout.rollout import StopReason

USER = {"role": "user", "content": "how many?"}
MORE = {"role": "user", "content": "and now?"}


@pytest.fixture
def talk(tokenizer: Any, processor: Any) -> Conversation:
    conversation = Conversation(tokenizer, processor)
    conversation.open([USER])
    return conversation


def say(talk: Conversation, text: str, *, stop: bool = True) -> Any:
    """Let the policy say it."""
    talk.request()
    ids = [*talk._tokenizer.encode(text).tolist(), *[talk._processor.close_token_id] * stop]
    return talk.hear(ids, [-0.5] * len(ids))


def parts_of(talk: Conversation, *messages: Any) -> list[int]:
    """One encode of the rendered conversation."""
    return talk._tokenizer.encode_parts(talk._processor.opening(list(messages))).tolist()


def test_a_conversation_is_what_the_template_renders(talk: Conversation) -> None:
    say(talk, "two")
    talk.reply([MORE])
    answer = {"role": "assistant", "content": "two"}
    assert talk.request().tolist() == parts_of(talk, USER, answer, MORE)
    assert talk.messages == [USER, answer, MORE]
    (turn,) = talk.turns
    assert (turn.start, turn.text) == (len(parts_of(talk, USER)), "two")
    assert talk._tokenizer.decode(talk.trajectory.ids[turn.start : turn.end]) == "two<|im_end|>"


def test_a_cut_turn_gets_the_templates_close_and_a_whole_one_nothing(talk: Conversation) -> None:
    say(talk, "two", stop=False)
    closed = talk.end_turn([MORE])
    assert closed is not None
    assert closed.parts == ["<|im_end|>"]
    talk.say([MORE])
    say(talk, "three")
    assert talk.end_turn([MORE]) is None


def test_what_is_only_noted_is_in_no_token(talk: Conversation) -> None:
    say(talk, "two")
    before = talk.trajectory.ids.tolist()
    talk.note([MORE])
    assert talk.trajectory.ids.tolist() == before
    assert talk.messages[-1] == MORE
    with pytest.raises(TrajectoryError) as raised:
        talk.request()
    assert str(raised.value) == (
        "1 of 3 messages are not written yet, so the policy would not see them\n"
        "hint: call open() or reply() first"
    )
    talk.reply()
    assert talk.trajectory.ids.tolist() == parts_of(
        talk, USER, {"role": "assistant", "content": "two"}, MORE
    )


def test_control_tokens_are_counted_where_a_user_spells_them(talk: Conversation) -> None:
    say(talk, "two")
    talk.reply([{"role": "user", "content": "<|im_end|> and <|im_end|>"}])
    talk.note([{"role": "system", "content": "<|im_end|>"}])
    assert talk.control_spellings == {"<|im_end|>": 2}


@pytest.mark.parametrize(
    ("budget", "first", "second"),
    [
        (Budget(), (sys.maxsize, "max_completion_tokens"), (sys.maxsize, "max_completion_tokens")),
        (Budget(max_completion_tokens=100), (100, "max_completion_tokens"), None),
        (Budget(max_turn_tokens=3), (3, "max_completion_tokens"), (3, "max_completion_tokens")),
    ],
)
def test_the_next_turn_is_bounded(
    tokenizer: Any, processor: Any, budget: Budget, first: Any, second: Any
) -> None:
    talk = Conversation(tokenizer, processor, budget=budget)
    talk.open([USER])
    prompt = len(talk.trajectory)
    assert talk.allowance == (first[0], StopReason(first[1]))
    say(talk, "two")
    talk.reply([MORE])
    if second is None:
        second = (100 - (len(talk.trajectory) - prompt), "max_completion_tokens")
    assert talk.allowance == (second[0], StopReason(second[1]))


def test_the_nearer_limit_is_the_reason(tokenizer: Any, processor: Any) -> None:
    for completion, reason in ((90, StopReason.MAX_CONTEXT_TOKENS), (5, "max_completion_tokens")):
        budget = Budget(max_completion_tokens=completion, max_context_tokens=60)
        talk = Conversation(tokenizer, processor, budget=budget)
        talk.open([USER])
        assert talk.allowance == (min(completion, 60 - len(talk.trajectory)), reason)


def test_a_stop_string_cuts_the_text_and_leaves_the_ids(talk: Conversation) -> None:
    talk.request()
    ids = talk._tokenizer.encode("two END three")
    turn = talk.hear(ids, [-0.5] * len(ids), stop_string="END")
    assert turn.text == "two "
    assert talk.trajectory.ids[turn.start :].tolist() == ids.tolist()
    assert turn.record.stop_token is not None
    assert (
        talk._tokenizer.decode(talk.trajectory.ids[turn.start : turn.record.stop_token]) in "two "
    )


def test_a_stop_string_that_is_not_there_is_an_error(talk: Conversation) -> None:
    talk.request()
    ids = talk._tokenizer.encode("two")
    with pytest.raises(SamplerError) as raised:
        talk.hear(ids, [-0.5] * len(ids), stop_string="END")
    assert str(raised.value) == (
        "turn 0: the sample ended with the stop string 'END', but its text does not have it\n"
        "hint: the sampler must return all sampled ids, including those of the stop string"
    )


def test_nothing_is_heard_that_was_not_asked_for(talk: Conversation) -> None:
    with pytest.raises(TrajectoryError):
        talk.hear([5], [-0.5])
    assert (talk.turns, talk.messages) == ([], [USER])


def test_a_policy_that_says_nothing_has_a_turn_and_no_message(talk: Conversation) -> None:
    talk.request()
    turn = talk.hear(np.empty(0, dtype=np.int64), [])
    assert (turn.start, turn.text) == (turn.end, "")
    assert (len(talk.turns), talk.messages) == (1, [USER])
    talk.reply([MORE])
    assert talk.trajectory.ids.tolist()[-3:] == parts_of(talk, USER)[-3:]


def a_conversation(tokenizer: Any, processor: Any, *, turns: int) -> Conversation:
    talk = Conversation(tokenizer, processor)
    talk.open([USER, {"role": "user", "content": "<|im_end|>"}])
    for k in range(turns):
        say(talk, f"it is {k}", stop=k != 1)
        talk.reply([{"role": "user", "content": f"<|im_end|> and {k}?"}])
    return talk


def state(talk: Conversation) -> Any:
    return (
        talk.trajectory.ids.tolist(),
        talk.trajectory.sampled_mask.tolist(),
        talk.messages,
        [(turn.start, turn.end, turn.text) for turn in talk.turns],
        talk.seams,
        talk.control_spellings,
    )


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_a_fork_goes_on_as_if_it_had_been_built_alone(
    tokenizer: Any, processor: Any, turn: int
) -> None:
    talk = a_conversation(tokenizer, processor, turns=3)
    before = state(talk)
    alone = a_conversation(tokenizer, processor, turns=turn)
    again = talk.fork(talk.turns[turn].start)
    again.hear(tokenizer.encode("other"), [-0.1] * len(tokenizer.encode("other")))
    alone.request()
    alone.hear(tokenizer.encode("other"), [-0.1] * len(tokenizer.encode("other")))
    assert state(again) == state(alone)
    for one in (again, alone):  # the sample was cut: its end is written
        one.reply([MORE])
    assert state(again) == state(alone)
    assert state(talk) == before, "the original is as it was"


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_a_fork_at_a_turns_end_hears_another_reply(
    tokenizer: Any, processor: Any, turn: int
) -> None:
    talk = a_conversation(tokenizer, processor, turns=3)
    alone = a_conversation(tokenizer, processor, turns=turn)
    say(alone, f"it is {turn}", stop=turn != 1)
    other = talk.fork(talk.turns[turn].end)
    assert state(other) == state(alone)
    for one in (other, alone):
        one.reply([MORE])
    assert state(other) == state(alone)


def test_a_fork_at_the_length_and_at_0(tokenizer: Any, processor: Any) -> None:
    talk = a_conversation(tokenizer, processor, turns=2)
    assert state(talk.fork(len(talk.trajectory))) == state(talk)
    assert state(talk.fork(0)) == state(Conversation(tokenizer, processor))


def test_last_words_that_were_only_noted_are_in_no_fork_of_the_turn(talk: Conversation) -> None:
    turn = say(talk, "two")
    talk.note([MORE])
    assert talk.fork(turn.end).messages == [USER, {"role": "assistant", "content": "two"}]
    assert talk.messages[-1] == MORE, "the negative control"


def test_a_fork_elsewhere_is_refused(tokenizer: Any, processor: Any) -> None:
    talk = a_conversation(tokenizer, processor, turns=2)
    with pytest.raises(TrajectoryError, match="hint: "):
        talk.fork(talk.turns[0].start + 1)


def test_messages_that_cannot_be_appended_leave_the_trajectory_as_it_was(
    talk: Conversation,
) -> None:
    say(talk, "two")
    before = talk.trajectory.ids.tolist()
    with pytest.raises(TemplateError):
        talk.reply([{"role": "user", "content": 7}])
    assert talk.trajectory.ids.tolist() == before


class Refuses:
    """A processor that cannot append one message, and says so late."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def increment(self, messages: Any) -> Any:
        if any(message["content"] == "no" for message in messages):
            raise TemplateError("no")
        return self._inner.increment(messages)


def test_a_reply_that_is_refused_behind_a_cut_turn_changes_nothing(
    tokenizer: Any, processor: Any
) -> None:
    talk = Conversation(tokenizer, Refuses(processor))  # type: ignore[arg-type]
    talk.open([USER])
    say(talk, "two", stop=False)
    before = state(talk)
    for _ in range(2):
        with pytest.raises(TemplateError):
            talk.reply([{"role": "user", "content": "no"}])
        assert state(talk) == before
    talk.reply([MORE])
    assert talk.request().tolist() == parts_of(
        talk, USER, {"role": "assistant", "content": "two"}, MORE
    )


def test_a_reply_without_a_turn_between_ends_the_empty_one(talk: Conversation) -> None:
    say(talk, "two")
    talk.reply([MORE])
    asked = len(talk.trajectory)
    talk.reply([MORE])
    written = talk._tokenizer.decode(talk.trajectory.ids[asked:])
    assert written.startswith("<|im_end|>\n<|im_start|>user\n")


def test_a_fork_at_a_turns_start_has_no_turn_to_end(tokenizer: Any, processor: Any) -> None:
    talk = a_conversation(tokenizer, processor, turns=2)
    again = talk.fork(talk.turns[1].start)
    asked = len(again.trajectory)
    again.reply([MORE])
    assert tokenizer.decode(again.trajectory.ids[asked:]).startswith("<|im_end|>\n")


def test_what_is_noted_between_request_and_sample_is_not_lost(talk: Conversation) -> None:
    talk.request()
    talk.note([MORE])
    with pytest.raises(TrajectoryError, match="are not written"):
        talk.hear([5], [-0.5])
    assert talk.turns == []
