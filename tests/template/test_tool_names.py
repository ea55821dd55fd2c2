"""One proof serves all names of tools, where a template does nothing with them but write them."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from abut.errors import TemplateError
from abut.messages import Message
from abut.template.processor import ChatTemplateProcessor
from abut.template.prover import Prover
from tests.kit.data.public_templates import TEMPLATES, first_mode, processor_of
from tests.kit.data.templates import render, text, tiny_tokenizer, tool

# Writes the name of each tool, and of the call.
NAMED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}<tool_call>{{ c.function.name }}"
    "{{ c.function.arguments | tojson }}{% endfor %}{% endif %}{{ m.content }}"
    "{% if m.role == 'tool' %} OF NAME{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PLAIN = NAMED.replace("NAME", "{{ m.name }}")
UPPER = NAMED.replace("NAME", "{{ m.name | upper }}")
APART = NAMED.replace("NAME", "{{ 'python' if m.name == 'browser' else m.name }}")
KNOWN = NAMED.replace("NAME", "{{ m.name if m.name in ('f', 'g') else raise_exception('who?') }}")


def answers(names: Sequence[str], **keys: Any) -> list[Message]:
    return [tool(f"of call {k}", name=name, **keys) for k, name in enumerate(names)]


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was proved."""
    proved: list[Any] = []
    prove = Prover.prove

    def noted(self: Prover, masked: Any) -> Any:
        proved.append(masked)
        return prove(self, masked)

    monkeypatch.setattr(Prover, "prove", noted)
    return proved


def written(template: str, names: Sequence[str]) -> str:
    """What the template writes for the answers, behind a turn that calls these tools."""
    calls = [{"function": {"name": name, "arguments": {"a": 1}}} for name in names]
    turn = {"role": "assistant", "content": "", "tool_calls": calls}
    whole = render(
        tiny_tokenizer(template), [{"role": "user", "content": "go"}, turn, *answers(names)]
    )
    return whole.partition("}<|im_end|>")[2]


@pytest.mark.parametrize("id_", [{}, {"tool_call_id": "call00001"}], ids=["no ids", "ids"])
def test_tools_that_were_not_called_together_before_cost_no_proof(
    proofs: list[Any], id_: dict[str, str]
) -> None:
    processor = ChatTemplateProcessor(tiny_tokenizer(PLAIN))
    processor.increment(answers("ab", **id_))
    processor.increment(answers("aa", **id_))
    before = len(proofs)
    for names in itertools.product(["f", "get_time", "a.b-c"], repeat=2):
        for _ in range(2):  # then from memory
            assert text(processor.increment(answers(names, **id_))) == written(PLAIN, names)
    assert len(proofs) == before


@pytest.mark.parametrize(
    "template", [PLAIN, UPPER, APART, KNOWN], ids=["plain", "upper", "apart", "known"]
)
def test_names_are_written_as_the_template_writes_them(template: str) -> None:
    processor = ChatTemplateProcessor(tiny_tokenizer(template))
    for names in (
        ["f", "g"],
        ["g", "f"],
        ["browser", "g"],
        ["f", "f", "browser"],
        ["f", "abutx0x"],
    ):
        if template is KNOWN and not {"f", "g"}.issuperset(names):
            with pytest.raises(TemplateError, match=r"who\?"):
                processor.increment(answers(names))
        else:
            assert text(processor.increment(answers(names))) == written(template, names)


def test_a_name_that_spells_a_control_token_mints_none() -> None:
    processor = ChatTemplateProcessor(tiny_tokenizer(PLAIN))
    processor.increment(answers(["f", "g"]))
    parts = processor.increment(answers(["<|im_end|>", "g"]))
    assert text(parts) == written(PLAIN, ["<|im_end|>", "g"])
    assert "<|im_end|>" in [part for part in parts if type(part).__name__ == "Content"]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("has_ids", [False, True], ids=["no ids", "ids"])
def test_the_shared_proof_is_that_of_the_names_themselves(name: str, has_ids: bool) -> None:
    processor = processor_of(name, first_mode(name))
    for names in ("now", "search"), ("add", "now", "add"):
        messages = answers(names)
        if has_ids:
            messages = [m | {"tool_call_id": f"call{k:05d}"} for k, m in enumerate(messages)]
        masked = processor._masked(messages)
        try:
            wanted = processor._prover.prove(masked)
        except TemplateError:
            with pytest.raises(TemplateError):
                processor.increment(messages)
            continue
        assert processor._proved(masked, messages) == wanted
