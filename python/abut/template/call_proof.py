"""Whether a parser gives back the calls that a template writes."""

from collections.abc import Sequence
from typing import Any

from abut.errors import TemplateError
from abut.template.call_marks import HARD, OTHERS
from abut.template.call_probe import (
    ANSWER,
    CALLS,
    CONTENT,
    KEY,
    NAME,
    OTHER_KEY,
    OTHER_NAME,
    VALUE,
    CallProbe,
)
from abut.template.call_turns import Turns
from abut.tool_calls.parse import Parse


class CallProof:
    """Writes calls with a template and has them parsed.

    Args:
        probe: gives calls to the template.
        turns: how it ends turns; a parser sees no end of one.
    """

    def __init__(self, probe: CallProbe, turns: Turns) -> None:
        self._probe = probe
        self._turns = turns

    def faults(self, parse: Parse) -> list[str]:
        """What of that which the template writes is not given back."""
        faults = []
        answer = parse(ANSWER)
        if (answer.content, answer.calls, answer.malformed) != (ANSWER, (), ()):
            faults.append("no call")
        cases: list[tuple[str, list[tuple[str, dict[str, Any]]]]] = [
            ("no arguments", [(NAME, {})]),
            ("a hard text", [(NAME, {KEY: HARD, OTHER_KEY: VALUE})]),
        ]
        cases += [(f"{value!r}", [(NAME, {KEY: value})]) for value in OTHERS]
        if self.writes_several:
            cases.append(("several calls", CALLS))
        faults += [what for what, calls in cases if not self.gives_back(parse, calls)]
        if self.writes_text_before:
            said = parse(self._written(CALLS[:1], content=CONTENT) or "")
            words = [word in said.content for word in (CONTENT, NAME, KEY, VALUE)]
            if len(said.calls) != 1 or said.malformed or words != [True, False, False, False]:
                faults.append("text before")
        return faults

    @property
    def writes_several(self) -> bool:
        """Whether the template writes several calls of a turn."""
        two = self._written(CALLS)
        return two is not None and OTHER_NAME in two

    @property
    def writes_text_before(self) -> bool:
        """Whether the template writes the text beside calls, and before them."""
        text = self._written(CALLS[:1], content=CONTENT)
        return text is not None and 0 <= text.find(CONTENT) < text.find(NAME)

    def gives_back(self, parse: Parse, calls: Sequence[tuple[str, dict[str, Any]]]) -> bool:
        """Whether calls come back, texts as they were, and rendered again are the same text."""
        written = self._written(calls)
        if written is None:
            return False
        found = parse(written)
        names = [name for name, _ in calls]
        if found.malformed or [call.name for call in found.calls] != names:
            return False
        for (_, given), call in zip(calls, found.calls, strict=True):
            texts = {key: value for key, value in given.items() if isinstance(value, str)}
            if given.keys() != call.arguments.keys() or not texts.items() <= call.arguments.items():
                return False
        return self._written([(call.name, call.arguments) for call in found.calls]) == written

    def _written(self, calls: Sequence[tuple[str, dict[str, Any]]], **keys: Any) -> str | None:
        try:
            return self._turns.said(self._probe.written(calls, **keys))
        except TemplateError:
            return None
