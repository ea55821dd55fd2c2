"""What stands directly around calls and is no text: control tokens, headers, a text's close."""

from collections.abc import Collection, Sequence

from abut.tool_calls.literals import skip_space


class Around:
    """Finds where that begins and ends.

    Args:
        leads: what may stand directly before calls.
        control: tokens that may, and behind the last call up to the end of the text.
    """

    def __init__(self, leads: Sequence[str], control: Collection[str]) -> None:
        self._control = frozenset(control)
        self._known = self._control.union(leads)
        lengths = {len(known) for known in self._known}
        self._lengths = sorted(lengths, reverse=True)  # of two that fit, the longer stands there

    def begin(self, text: str, free: int, start: int) -> int:
        """Where that begins which belongs to the calls at `start`, not before `free`."""
        while (before := self._known_before(text, free, start)) < start:
            start = before
        return start

    def end(self, text: str, at: int) -> int:
        """The end of the text where only control tokens stand there behind calls, else `at`."""
        place = skip_space(text, at)
        while place < len(text):
            size = next((n for n in self._lengths if text[place : place + n] in self._control), 0)
            if size == 0:
                return at
            place = skip_space(text, place + size)
        return place

    def is_behind_control(self, text: str, start: int) -> bool:
        """Whether calls may begin here: at the begin of the text, or behind a control token."""
        end = _without_space(text, 0, start)
        return end == 0 or any(text[max(end - n, 0) : end] in self._control for n in self._lengths)

    def _known_before(self, text: str, free: int, start: int) -> int:
        end = _without_space(text, free, start)
        for size in self._lengths:
            if free <= end - size and text[end - size : end] in self._known:
                return end - size
        return start


def _without_space(text: str, begin: int, end: int) -> int:
    """Where the whitespace before `end` begins; no slice, since texts full of calls are long."""
    while end > begin and text[end - 1].isspace():
        end -= 1
    return end
