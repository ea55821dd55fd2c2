"""What a template writes in turns without calls, and how texts are compared by tags and words."""

import re
from collections.abc import Sequence

from abut.errors import TemplateError
from abut.template.call_probe import ANSWER, CallProbe
from abut.template.probe import assistant
from abut.tool_calls.patterns import TAG

_ATOM = re.compile(rf"{TAG.pattern}|\s|\w+|.", re.DOTALL)


class Turns:
    """Turns without calls: what stands in them says nothing about calls.

    Attributes:
        tags: all that stand there.
        text_close: what closes the text of an answer before the turn ends; a turn that also calls
            writes it before its calls.
        header: what asks the model for its turn.

    Args:
        probe: renders with the template.
        ends: the tokens that are known to end a turn.
    """

    def __init__(self, probe: CallProbe, ends: Sequence[str]) -> None:
        self.tags = frozenset(TAG.findall(probe.ordinary()))
        try:
            self._end = probe.behind_prompt(assistant(ANSWER)).rpartition(ANSWER)[2]
        except TemplateError:
            self._end = ""
        # What ends every message tells the close of a text from the end of its turn: with calls,
        # the two ends may share more by chance (Kimi K3 closes texts and calls with <|sep|>).
        of_user = probe.end_of_user()
        self.header = probe.prompt.removeprefix(of_user)
        of_messages = common_suffix(self._end, of_user)
        known_end = TAG.search(of_messages) is not None
        self._shared_end = of_messages if known_end else self._end
        self.text_close = self._end.removesuffix(of_messages).strip() if known_end else ""
        self._ends = re.compile("|".join(map(re.escape, filter(None, ends))) or "(?!)")
        own = self._end.strip()  # what many tags end may have some of them elsewhere, too
        known = filter(None, [*ends, own if len(TAG.findall(own)) <= 1 else ""])
        self._any_end = re.compile("|".join(map(re.escape, known)) or "(?!)")

    def said(self, text: str) -> str:
        """What the policy says of a turn: all but its end."""
        return self._ends.split(self._without_end(text), maxsplit=1)[0]

    def before_end(self, text: str) -> str:
        """What stands before the end of a turn, in a text behind a call."""
        return self._any_end.split(self._without_end(text), maxsplit=1)[0]

    def _without_end(self, text: str) -> str:
        if self._end and text.endswith(self._end):
            return text.removesuffix(self._end)
        return text.removesuffix(common_suffix(text, self._shared_end))


def common_prefix(a: str, b: str) -> str:
    """The common beginning, of whole tags and words."""
    atoms = []
    for x, y in zip(_ATOM.findall(a), _ATOM.findall(b), strict=False):
        if x != y:
            break
        atoms.append(x)
    return "".join(atoms)


def common_suffix(a: str, b: str) -> str:
    """The common end, of whole tags and words."""
    atoms = []
    for x, y in zip(reversed(_ATOM.findall(a)), reversed(_ATOM.findall(b)), strict=False):
        if x != y:
            break
        atoms.append(x)
    return "".join(reversed(atoms))
