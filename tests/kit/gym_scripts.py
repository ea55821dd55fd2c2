"""What a policy says that plays NeMo Gym's examples: calls of tools, answers, thinking."""

import json
import re
from collections.abc import Sequence
from typing import Any

from abut.samplers.sampler import SampleRequest


def a_call(tool: str, **arguments: Any) -> str:
    call = json.dumps({"name": tool, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


def script_of(prompt: str) -> Sequence[str]:
    """The turns of a rollout, by what its prompt is about."""
    if found := re.search(r"add (\d+) then add (\d+) then get", prompt):
        first, second = map(int, found.groups())
        both = [a_call("increment_counter", count=count) for count in (first, second)]
        return ["\n".join(both), a_call("get_counter_value"), "That is the count."]
    if "get_synonym_value" in prompt:
        return [
            f"<think>\nwhich ones?\n</think>\n\n{a_call('get_synonym_value', synonym='Blazing')}",
            a_call("extract_synonym_values", synonym_values=[711, 407]),
            "Extracted.",
        ]
    if "company_directory_find_email_address" in prompt:
        call = a_call("company_directory_find_email_address", name="carlos")
        return [f"I look him up.{call}", "There he is."]
    if "get_weather" in prompt:
        city = re.search(r"in (San Francisco|New York|\w+)", prompt.rpartition("user\n")[2])
        return [a_call("get_weather", city=city[1] if city else "Paris"), "Cold."]
    if "boxed" in prompt:
        return ["I think \\boxed{A}"]
    return ["Paris.", "Many.", "The Eiffel tower: 20, 42."]


class Plays:
    """Says the script of a rollout, turn by turn, where `whom` says that it is to.

    Args:
        tokenizer: of the model.
        close: the token that ends a turn.
        whom: whether a rollout is played by its script, by its id.
    """

    def __init__(self, tokenizer: Any, close: int, whom: Any = lambda rollout_id: True) -> None:
        self._tokenizer, self._close, self._whom = tokenizer, close, whom

    def __call__(self, request: SampleRequest) -> list[int] | None:
        if not self._whom(request.rollout_id):
            return None
        prompt = self._tokenizer.decode(request.prompt_ids.tolist())
        script = script_of(prompt)
        turn = min(request.turn, len(script) - 1)
        return [*self._tokenizer.encode(script[turn]).tolist(), self._close]
