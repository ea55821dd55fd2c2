"""Every template of TRL, and the `[INST]` style: what is appended is what the template writes.

The oracle is the full render of a random conversation. It knows nothing of probes, plans or rules.
"""

import itertools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

import abut
from abut.errors import TemplateError
from abut.parts import Content, Part, Scaffold
from abut.template.processor import ChatTemplateProcessor
from abut.template.report import NEXT_MESSAGES
from tests.kit.data.public_templates import (
    SCRIPT_MODULE,
    TEMPLATES,
    first_mode,
    processor_of,
    tokenizer_of,
)
from tests.kit.stage.rollouts import Stage, env

Message = dict[str, Any]

transformers = pytest.importorskip("transformers")

CASES = [
    (name, mode)
    for name, template in TEMPLATES.items()
    for mode in SCRIPT_MODULE.thinking(template)
]


def text(parts: list[Part]) -> str:
    return "".join(parts)


# ---- the oracle

PIECES = [
    " ",
    "\n",
    "\t\r\n",
    "\u00a0\u3000",
    "\u200b",
    "{{ messages }}{% raw %}{#",
    "<|im_end|>",
    "<|im_",
    "<end_of_turn>",
    "[/INST]",
    "<｜User｜>",
    "</s>",
    "<think>\nhm\n</think>\n\n",
    "<tool_response>",
    "\n</tool_response>",
    "<b>&amp;\"'\\n\\",
    '{"a": [1, null]}',
    "é e\u0301 \U0001f600",
    "\x00",
    "abutx0x abutZxanswer abutEarlier",
]
contents = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=5).map("".join)
plain_words = st.sampled_from(["hello", "what is it?", "so\nbe it", "7"])
answers = st.one_of(
    plain_words,
    st.tuples(plain_words, plain_words).map(lambda p: f"<think>\n{p[0]}\n</think>\n\n{p[1]}"),
    st.sampled_from(["", "<think>\ncut", "no</think>", "<tool_call>\n{"]),
)


@st.composite
def conversations(draw: st.DrawFn, kind: str) -> tuple[list[Message], list[Message]]:
    """What came before the last turn of the assistant, and what comes after it."""
    history: list[Message] = []
    if draw(st.booleans()):
        history.append({"role": "system", "content": draw(plain_words)})
    for _ in range(draw(st.integers(0, 4))):
        history.append({"role": "user", "content": draw(plain_words)})
        history.append({"role": "assistant", "content": draw(answers)})
    history.append({"role": "user", "content": draw(plain_words)})
    new = [{**message, "content": draw(contents)} for message in NEXT_MESSAGES[kind]]
    return history, new


def last_turns(new: list[Message], anchor: str) -> list[Message]:
    """The last turn, in the forms in which templates take it."""
    answer = {"role": "assistant", "content": anchor}
    tools = [message for message in new if message["role"] == "tool"]
    if not tools:
        return [answer]
    forms = []
    for called, as_text in itertools.product((tools, tools[:1]), (False, True)):
        calls = [
            {
                "type": "function",
                "id": tool["tool_call_id"],
                "function": {
                    "name": tool["name"],
                    "arguments": f'{{"q": "{anchor}{k}"}}' if as_text else {"q": f"{anchor}{k}"},
                },
            }
            for k, tool in enumerate(called)
        ]
        forms.append({"role": "assistant", "content": "", "tool_calls": calls})
    return [*forms, answer]


def check_conversation(
    processor: ChatTemplateProcessor,
    render: Callable[[list[Message]], str],
    history: list[Message],
    new: list[Message],
) -> None:
    """What is appended is what the template writes at the end of the whole conversation."""
    anchor = "theTurnOfThePolicy"
    for turn in last_turns(new, anchor):
        try:
            theirs = render([*history, turn, *new])
        except Exception:
            continue
        if anchor in theirs:
            break
    else:
        raise LookupError("the template takes no such conversation")
    ours = text(processor.closing(new)) + text(processor.increment(new))
    if "tool_calls" in turn:  # how much of the render is the call, only its writer knows
        assert theirs.endswith(ours)
        assert anchor not in ours
    else:
        assert theirs.partition(anchor)[2] == ours


def renderer(hf: Any, **keys: Any) -> Callable[[list[Message]], str]:
    def blocks(message: Message) -> Message:
        return {**message, "content": [{"type": "text", "text": message["content"]}]}

    # Templates for images take lists only.
    probe = [{"role": "user", "content": "zyx"}]
    listed = "zyx" not in hf.apply_chat_template(probe, tokenize=False, **keys)

    def render(messages: list[Message]) -> str:
        messages = [blocks(message) for message in messages] if listed else messages
        return str(
            hf.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **keys)
        )

    return render


quick = settings(
    max_examples=int(os.environ.get("ABUT_FUZZ_EXAMPLES", "15")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.parametrize(("name", "mode"), CASES)
@given(data=st.data(), kind=st.sampled_from(list(NEXT_MESSAGES)))
@quick
def test_what_is_appended_is_what_the_template_writes(
    name: str, mode: str, data: st.DataObject, kind: str
) -> None:
    processor = processor_of(name, mode)
    verdict = next(v for v in processor.verdicts() if v.kind == kind)
    history, new = data.draw(conversations(kind))
    if not verdict.appendable:
        with pytest.raises(TemplateError, match=re.escape(verdict.because[:30])):
            processor.increment(new)
        return
    if any("the system message" in note for note in verdict.notes):
        history = [message for message in history if message["role"] != "system"]
    hf = tokenizer_of(name, TEMPLATES[name])
    keys = SCRIPT_MODULE.thinking(TEMPLATES[name])[mode]
    try:
        check_conversation(processor, renderer(hf, **keys), history, new)
    except LookupError:
        reject()

    parts = processor.increment(new)
    if all(message["content"] for message in new):  # an empty one is a shape of its own
        scaffold = "".join(p for p in parts if isinstance(p, Scaffold))
        assert scaffold == verdict.scaffold.replace("{}", "")
    said = "".join(message["content"] for message in new)
    if set(verdict.contents) == {"as is"}:
        assert "".join(p for p in parts if isinstance(p, Content)) == said


# ---- a rollout


@pytest.mark.parametrize("name", TEMPLATES)
def test_each_request_of_a_rollout_ends_as_the_template_writes(name: str) -> None:
    hf, mode = tokenizer_of(name, TEMPLATES[name]), first_mode(name)
    processor, tokenizer = processor_of(name, mode), abut.Tokenizer.from_pretrained(hf)
    end = text(processor.closing())
    token = processor.report.end_token
    said = tokenizer.encode(end.removesuffix(token)).tolist()  # what else the model writes there
    says = "go on </s><end_of_turn>"
    played = Stage(tokenizer, processor).play(
        env(texts=[says], turns=3),
        script=lambda r: [
            *tokenizer.encode(f"answerOf{r.turn}", added="text").tolist(),
            *said,
            processor.close_token_id,
        ],
    )
    assert played.one.error is None
    render = renderer(hf, **SCRIPT_MODULE.thinking(TEMPLATES[name])[mode])
    assert len(played.sampler.calls) == 3
    for turn, (request, _) in enumerate(played.sampler.calls):
        ours = tokenizer.decode(request.prompt_ids)
        messages = [{"role": "user", "content": says}]
        for k in range(turn):
            messages += [{"role": "assistant", "content": f"answerOf{k}"}, messages[0]]
        theirs = render(messages)
        if turn == 0:
            assert ours == theirs
            continue
        answer = f"answerOf{turn - 1}"
        stopped = end.removesuffix(token) + processor.report.stop_tokens[0]
        assert ours.partition(answer)[2].startswith(stopped)
        assert stopped + theirs.partition(answer + end)[2] == ours.partition(answer)[2]
        # What was said spelled control tokens, and minted none.
        control = set(hf.get_added_vocab().values())
        minted = [i for i in request.prompt_ids.tolist() if i in control]
        quiet = render([{**m, "content": m["content"].replace("<", "")} for m in messages])
        tail = quiet.partition(answer + end)[2]
        wanted = [i for i in tokenizer.encode(tail).tolist() if i in control]
        assert minted[len(minted) - len(wanted) :] == wanted


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_turn_that_calls_is_closed_by_the_policy_or_else_by_abut(name: str) -> None:
    processor = processor_of(name, first_mode(name))
    tokenizer = abut.Tokenizer.from_pretrained(tokenizer_of(name, TEMPLATES[name]))
    verdict = next(v for v in processor.verdicts() if v.kind == "tool")
    result = {**NEXT_MESSAGES["tool"][0], "content": "found"}
    if not verdict.appendable:
        with pytest.raises(TemplateError):
            processor.closing([result])
        return
    stage = Stage(tokenizer, processor)
    # Behind the thinking that the generation prompt may have opened: it would be closed as well.
    opened = processor.report.generation_prompt.rstrip().endswith("<think>")
    sampled = tokenizer.encode("</think>call it" if opened else "call it")
    for stop in ([tokenizer.token_to_id(verdict.stop)], []):
        played = stage.play(
            env(texts=["Hi", [result]], turns=2),
            script=lambda r, stop=stop: [*sampled, *stop],
        )
        assert played.one.error is None
        _, (request, _) = played.sampler.calls
        tail = tokenizer.decode(request.prompt_ids).partition("call it")[2]
        assert tail == verdict.stop + verdict.scaffold.replace("{}", "found")
        closed_by_abut = played.one.provenance.tolist().count(
            abut.trajectory.PROVENANCE.index("close")
        )
        assert closed_by_abut == (0 if stop else 1)


@pytest.fixture(scope="module")
def mistral() -> Any:
    folder = os.environ.get("ABUT_TOKENIZERS")
    if not folder:
        pytest.skip("ABUT_TOKENIZERS is unset: it names a folder of tokenizer folders")
    hf = transformers.AutoTokenizer.from_pretrained(Path(folder) / "mistral_v3")
    hf.chat_template = TEMPLATES["inst_mistral_v3"]
    return hf


def test_a_rollout_with_mistral_s_tokenizer_has_the_tokens_of_the_whole(mistral: Any) -> None:
    processor, tokenizer = ChatTemplateProcessor(mistral), abut.Tokenizer.from_pretrained(mistral)
    assert processor.report.stop_tokens == ("</s>",)
    played = Stage(tokenizer, processor).play(
        env(texts=["Hi", "é ☃\n\n", "[/INST]"], turns=3),
        script=lambda r: [*tokenizer.encode("Yes, and"), processor.close_token_id],
    )
    assert played.one.error is None
    texts = ["Hi", "Yes, and", "é ☃\n\n"]
    for turn, (request, _) in enumerate(played.sampler.calls[:2]):
        messages = [
            {"role": role, "content": said}
            for role, said in zip(["user", "assistant", "user"], texts, strict=True)
        ][: 2 * turn + 1]
        theirs = mistral.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert request.prompt_ids.tolist() == tokenizer.encode(theirs).tolist()
    request, _ = played.sampler.calls[2]
    assert request.prompt_ids.tolist().count(mistral.convert_tokens_to_ids("[/INST]")) == 3
    assert request.prompt_ids.tolist().count(mistral.bos_token_id) == 1


# ---- the oracle can fail

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_the_oracle_notices_a_template_that_counts_its_messages() -> None:
    # The probes have no history of this length, so the processor believes the template.
    template = CHATML + "{% if messages|length == 9 %}!{% endif %}"
    hf = tokenizer_of("qwen", template)
    processor, render = ChatTemplateProcessor(hf), renderer(hf)
    turn = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    new = [{"role": "user", "content": "c"}]
    check_conversation(processor, render, [*turn, *turn, turn[0]], new)
    with pytest.raises(AssertionError):
        check_conversation(processor, render, [*turn, *turn, *turn, turn[0]], new)


WITHOUT_O = "(m.content|replace('o', '') if m.role == 'user' else m.content)"


def test_the_oracle_notices_a_wrong_content() -> None:
    hf = tokenizer_of("qwen", CHATML)
    processor = ChatTemplateProcessor(hf)
    user = {"role": "user", "content": "a"}
    without_o = renderer(hf, chat_template=CHATML.replace("m.content", WITHOUT_O))
    check_conversation(processor, renderer(hf), [user], [{**user, "content": "Loud"}])
    with pytest.raises(AssertionError):
        check_conversation(processor, without_o, [user], [{**user, "content": "Loud"}])


# ---- the table


def test_the_table_holds() -> None:
    """`python scripts/chat_templates.py --write` writes it again."""
    written = SCRIPT_MODULE.PAGE.read_text().partition(SCRIPT_MODULE.MARK)[2]
    if SCRIPT_MODULE.rendered_by() not in written:
        pytest.skip(f"docs/background/templates.md is not of {SCRIPT_MODULE.rendered_by()}")
    assert SCRIPT_MODULE.page(TEMPLATES) == written


def test_the_table_notices_a_template_that_changed() -> None:
    two = {name: TEMPLATES[name] for name in ("qwen3", "inst_llama2")}
    broken = two | {"qwen3": TEMPLATES["qwen3"].replace("'\\n<tool_response>\\n'", "loop.index0")}
    assert broken != two
    assert SCRIPT_MODULE.page(broken) != SCRIPT_MODULE.page(two)


def test_a_user_can_follow_in_every_template() -> None:
    verdicts = {case: processor_of(*case).verdicts()[0] for case in CASES}
    assert [case for case, verdict in verdicts.items() if not verdict.appendable] == []
    assert {verdict.kind for verdict in verdicts.values()} == {"user"}


@pytest.mark.parametrize("role", ["user", "tool"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_no_template_writes_the_list_of_parts_itself(name: str, role: str) -> None:
    processor = processor_of(name, first_mode(name))
    parts = [{"type": "text", "text": text} for text in ("one", "two")]
    message = {"role": role, "name": "look", "tool_call_id": "call00000", "content": parts}
    try:
        written = text(processor.increment([message]))
    except TemplateError:
        with pytest.raises(TemplateError):
            processor.increment([message | {"content": "one"}])
        return
    assert re.search(r"one(\n|\\n)?two", written)
    assert "text" not in written


def test_a_developer_stays_one_where_the_template_has_the_role() -> None:
    message = {"role": "developer", "content": "Be brief."}
    assert "developer<|message|>" in text(processor_of("gptoss", "").opening([message]))
    written = text(processor_of("qwen3", first_mode("qwen3")).opening([message]))
    assert "<|im_start|>system\nBe brief." in written
