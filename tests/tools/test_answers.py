"""What answers a turn can be written, however the policy calls."""

from typing import Any

import pytest

pytest.importorskip("transformers")

from abut.errors import TemplateError
from abut.template.processor import ChatTemplateProcessor
from abut.template.text_processor import as_parts_processor
from abut.tools.tool_messages import ToolAnswers
from tests.kit.data.templates import CHATML, NAMES, SHOWN, text, tool

TOOLS = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": {}}}
    for name in ("add", "größe")
]
# As Mistral's: an id of nine characters, or none of it.
IDS = SHOWN + CHATML.replace(
    "{{ '<|im_start|>' + m.role",
    "{% if m.role == 'tool' and m.tool_call_id | default('') | length != 9 %}"
    "{{ raise_exception('ids have 9 characters') }}{% endif %}"
    "{{ '<|im_start|>' + m.role + (m.tool_call_id or '')",
    1,
)
TWO = [tool("3", name="add"), tool('{"error": "no"}', name="error")]


def processor(hf_tokenizer: Any, template: str, **options: Any) -> ChatTemplateProcessor:
    return ChatTemplateProcessor(
        hf_tokenizer, **{"tools": TOOLS, "chat_template": template} | options
    )


@pytest.mark.parametrize("id_", [None, "short", "ab<s>INST", "nine char"])
def test_an_id_is_ours_where_the_policy_wrote_none_that_can_be_used(
    hf_tokenizer: Any, id_: str | None
) -> None:
    ids = processor(hf_tokenizer, IDS)
    wrong = tool("3", name="add") | ({} if id_ is None else {"tool_call_id": id_})
    good = tool("4", name="add", tool_call_id="abcdefghi")
    written = ToolAnswers(ids, TOOLS).written([wrong, good])
    assert [message["tool_call_id"] for message in written] == ["call00000", "abcdefghi"]
    assert "toolabcdefghi\n4<|im_end|>" in text(ids.increment(written))


def test_no_id_is_made_where_the_template_asks_for_none(hf_tokenizer: Any) -> None:
    answers = ToolAnswers(processor(hf_tokenizer, SHOWN + CHATML), TOOLS)
    assert answers.written(TWO) == TWO
    (written,) = answers.written([tool("3", name="add", tool_call_id="<|im_end|>")])
    assert written["tool_call_id"] == "call00000"


def test_an_id_of_name_and_number_is_kept_where_no_others_are_asked_for(hf_tokenizer: Any) -> None:
    answer = tool("3", name="add", tool_call_id="functions.add:0")
    free, asked = (processor(hf_tokenizer, template) for template in (SHOWN + CHATML, IDS))
    assert ToolAnswers(free, TOOLS).written([answer]) == [answer]
    (written,) = ToolAnswers(asked, TOOLS).written([answer])
    assert written["tool_call_id"] == "call00000"
    (written,) = ToolAnswers(free, TOOLS).written([answer | {"tool_call_id": "functions.a b:0"}])
    assert written["tool_call_id"] == "call00000"


def test_there_is_one_message_where_the_template_takes_one_name(hf_tokenizer: Any) -> None:
    names = processor(hf_tokenizer, NAMES)
    with pytest.raises(TemplateError):
        names.increment(TWO)
    answers = ToolAnswers(names, TOOLS)
    written = answers.written(TWO)
    assert written == [tool('add: 3\nerror: {"error": "no"}', name="add")]
    assert '<|im_start|>add\nadd: 3\nerror: {"error": "no"}<|im_end|>' in text(
        names.increment(written)
    )
    assert answers.written([TWO[0]] * 2) == [TWO[0]] * 2


def test_a_prompt_without_the_tools_is_refused(hf_tokenizer: Any) -> None:
    with pytest.raises(TemplateError) as refused:
        ToolAnswers(processor(hf_tokenizer, SHOWN + CHATML, tools=None), TOOLS)
    assert str(refused.value) == (
        "the prompt does not show the policy any of its tools: add, größe\nhint: leave "
        "processor= out, or pass it the tools: ChatTemplateProcessor(tokenizer, "
        "tools=env.tools); its template must write tools"
    )
    escaped = SHOWN.replace(
        "tools | tojson", "(tools[1].function.name | tojson(ensure_ascii=true))"
    )
    ToolAnswers(processor(hf_tokenizer, escaped + CHATML), TOOLS[1:])


def test_a_processor_that_writes_no_results_is_refused(hf_tokenizer: Any) -> None:
    class Text:
        def init_system_input(self, prompt: str) -> str:
            return prompt

        def append_user_input(self, prompt: str) -> str:
            return f"Tools: add, größe\n{prompt}\n"

        def parse_agent_output(self, completion: str) -> tuple[str, str]:
            return "", completion

    with pytest.raises(TemplateError) as refused:
        ToolAnswers(as_parts_processor(Text(), hf_tokenizer), TOOLS)
    assert str(refused.value) == (
        "the processor cannot write the result of a tool: a processor with only the three text "
        "methods accepts [user] here, not [tool]\nhint: use ChatTemplateProcessor with a "
        "template that accepts messages of the role 'tool'"
    )
