"""Write the table of `docs/background/tool_calls.md`: how abut parses the calls of each template.

    python scripts/fetch_templates.py .templates     # of llama.cpp, vLLM, Unsloth and Axolotl
    python scripts/call_templates.py .templates      # print the table
    python scripts/call_templates.py .templates --write

Without a folder, the script uses the templates of the installed TRL. A template in several sets is
counted once. The tokenizers come from `chat_templates.py`, because the text that a template writes
does not depend on other tokens.
"""

import argparse
import functools
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import chat_templates
from chat_templates import MARK, PIPE, Family, rendered_by

from abut.errors import TemplateError
from abut.template.calls.parser import CallProof
from abut.template.calls.written import CALLS, CallProbe, Turns, call_probes
from abut.template.processor import ChatTemplateProcessor
from abut.template.thinking import Render
from abut.tool_calls.parsed import ParsedCalls

PAGE = Path(__file__).parents[1] / "docs" / "background" / "tool_calls.md"
ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<|eot|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "<turn|>"),
    *("<|calls|>", "<end_of_turn>", "<|END_OF_TURN_TOKEN|>", "<|return|>", "<|end|>", "[e~["),
    *("[|endofturn|]", "<SPECIAL_12>", "</assistant>", "<sep>", "</s>", "<seed:eos>"),
    *("<|end_of_msg|>", "<|role_end|>", "<｜hy_eos:opensource｜>", "<|endoftext|>"),
)
UNWRITTEN = ("<|python_start|>", "<|python_end|>")
"""Tokens of Llama 4 that its models write, but its templates do not."""
KEYS = ("abutKey", "abutLater", "abutMore")
NAMES = ("abutName", "abutOther", "abutThird")


def tool(name: str, types: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the schema of a function."""
    types = types if types is not None else dict.fromkeys(KEYS, "string")
    properties = {key: {"type": kind, "description": "."} for key, kind in types.items()}
    parameters = {"type": "object", "properties": properties, "required": []}
    function = {"name": name, "description": ".", "parameters": parameters}
    return {"type": "function", "function": function}


@dataclass(frozen=True)
class Template:
    """A chat template of a public set."""

    name: str
    """For example `llama_cpp/Qwen3-Coder`."""
    text: str

    @functools.cached_property
    def hf_tokenizer(self) -> Any:
        """Return a tokenizer with this template."""
        short = self.name.partition("/")[2]
        if self.name.startswith("trl/"):
            family = chat_templates.family(short)
        else:
            # Hy3's template builds each token from a name and `:opensource`.
            names = {token: token.partition(":opensource")[0] for token in ENDS}
            end = next((token for token in ENDS if names[token] in self.text), ENDS[-1])
            family = Family(end, "<s>", UNWRITTEN if "llama4" in short else ())
        return chat_templates.tokenizer(self.text, family)

    def render(self, tools: Sequence[Any], **variables: Any) -> Render:
        """Return a renderer with these tools and variables."""

        def render(messages: Sequence[Any], *, add_generation_prompt: bool = True) -> str:
            try:
                return str(
                    self.hf_tokenizer.apply_chat_template(
                        list(messages),
                        tools=list(tools),
                        tokenize=False,
                        add_generation_prompt=add_generation_prompt,
                        **variables,
                    )
                )
            except Exception as error:  # a template can raise anything
                raise TemplateError(f"{type(error).__name__}: {error}") from error

        return render


@dataclass(frozen=True)
class Reading:
    """The calls that a template writes, and the processor that parses them, for given tools."""

    probe: CallProbe
    turns: Turns
    processor: ChatTemplateProcessor

    @classmethod
    def of(cls, template: Template, tools: Sequence[Any], **variables: Any) -> "Reading | None":
        """Return the reading, or None if the template does not write calls.

        Raises:
            TemplateError: no parser reads the calls, or abut refuses the template.
        """
        render = template.render(tools, **variables)
        if next(call_probes(render), None) is None:
            return None
        processor = ChatTemplateProcessor(template.hf_tokenizer, tools=tools, **variables)
        processor.parse_tool_calls("")
        probe = next(call_probes(render, processor.thinking))
        return cls(probe, Turns(probe, processor.report.stop_tokens), processor)

    @property
    def proof(self) -> CallProof:
        """The proof that parsing returns the calls that were written."""
        return CallProof(self.probe, self.turns)

    def parse(self, action: str) -> ParsedCalls:
        """Return the calls in an action."""
        return self.processor.parse_tool_calls(action)

    def completion(self, calls: Sequence[tuple[str, dict[str, Any]]], **keys: Any) -> str:
        """Return the policy's text of a turn with calls, its thinking included."""
        return self.turns.said(replace(self.probe, thinking=None).written(calls, **keys))

    def action(self, calls: Sequence[tuple[str, dict[str, Any]]], **keys: Any) -> str:
        """Return the action of a turn with calls; the keys add other parts, such as thinking."""
        completion, thinking = self.completion(calls, **keys), self.processor.thinking
        if thinking.opened and thinking.close not in completion:
            completion = (
                thinking.close + completion
            )  # the prompt opened it, so the policy closes it
        return self.processor.parse_agent_output(completion)[1]


def public_templates(folder: Path | None) -> list[Template]:
    """Return the templates of TRL and of the sets in a folder, each text once."""
    found = {f"trl/{name}": text for name, text in chat_templates.templates().items()}
    for file in sorted(folder.glob("*/*.jinja")) if folder is not None else ():
        found[f"{file.parent.name}/{file.stem}"] = file.read_text()
    by_text: dict[str, str] = {}
    for name, text in found.items():
        by_text.setdefault(text, name)
    return [Template(name, text) for text, name in by_text.items()]


THINKING = dict.fromkeys(("reasoning_content", "reasoning", "thinking"), "abutReasoning")


def row(template: Template) -> tuple[str, ...] | None:
    """Return a line of the table, or None if the template does not write calls."""
    tools = [tool(name) for name in NAMES[:2]]
    try:
        reading = Reading.of(template, tools)
    except TemplateError as error:
        return template.name, "no", "", "", "", str(error).partition("\n")[0].replace("|", PIPE)
    if reading is None:
        return None
    faults = reading.proof.faults(reading.parse)
    several = "yes" if reading.proof.writes_several else "one a turn"
    text = "yes" if reading.proof.writes_text_before else "not written"
    called = reading.parse(reading.action(CALLS[:1], **THINKING)).calls
    thinking = "not written"
    if "abutReasoning" in reading.completion(CALLS[:1], **THINKING):
        thinking = "yes" if [call.name for call in called] == ["abutName"] else "no"
    return template.name, "yes", several, text, thinking, "; ".join(f"not {f}" for f in faults)


def page(folder: Path | None) -> str:
    """Return the generated part of the page."""
    templates = public_templates(folder)
    rows = [found for template in templates if (found := row(template)) is not None]
    counts = Counter(found[1] for found in rows)
    titles = ("template", "read", "several", "text before", "thinking before", "but")
    lines = [
        f"{len(templates)} templates, of {rendered_by()}, and of llama.cpp, vLLM, Unsloth and "
        f"Axolotl as `scripts/fetch_templates.py` fetches them. {len(rows)} write calls; "
        f"{counts['yes']} of them are read.",
        "",
        *("| " + " | ".join(cells) + " |" for cells in (titles, ["---"] * 6, *sorted(rows))),
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", help="folder of fetched templates")
    parser.add_argument("--write", action="store_true", help=f"write into {PAGE.name}")
    options = parser.parse_args(arguments)
    text = page(options.folder)
    if options.write:
        mark = MARK.replace("chat_templates", "call_templates")
        PAGE.write_text(PAGE.read_text().partition(mark)[0] + mark + text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
