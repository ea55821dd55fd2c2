"""`abut check` takes apart what a template writes, and says where that comes back otherwise."""

from os.path import commonprefix
from typing import Any

import pytest

import abut.template.calls.parser
import abut.template.thinking
from abut.audit.printed import lines
from abut.audit.round_trips import RoundTrip, judge_round_trips
from abut.audit.verdict import audit
from tests.kit.data.templates import CALLS_BEHIND_THINKING, TAGS_ALIKE, tiny_tokenizer


def judged(template: str, **options: Any) -> dict[str, RoundTrip]:
    trips = judge_round_trips(tiny_tokenizer(template), options)
    return {trip.name: trip for trip in trips}


def test_thinking_is_taken_apart_with_every_switch_that_changes_the_prompt() -> None:
    trips = judged(TAGS_ALIKE)
    assert list(trips) == ["thinking", "thinking, enable_thinking=false"]
    assert [(trip.broken, trip.note) for trip in trips.values()] == [
        (0, ""),
        (0, "the template does not write thinking here"),
    ]
    assert trips["thinking"].tried > 80, "thoughts are cut at every character"
    assert list(judged(TAGS_ALIKE, enable_thinking=False)) == ["thinking"]


def test_calls_are_taken_apart_alone_and_behind_thoughts() -> None:
    calls = judged(CALLS_BEHIND_THINKING)["calls"]
    assert (calls.broken, calls.tried > 0, calls.note) == (0, True, "")


def test_a_form_of_calls_that_is_not_known_is_said_to_be_unknown() -> None:
    unknown = CALLS_BEHIND_THINKING.replace("tool_call>", "c>")
    unknown = unknown.replace("arguments | tojson", "arguments | string | reverse")
    calls = judged(unknown)["calls"]
    assert (calls.tried, calls.broken) == (0, 0)
    assert calls.note == "not parsed, because abut does not know the form in which they are written"


@pytest.fixture
def cuts_in_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thinking is looked for as it was when a cut could lie inside a tag."""

    def after_common_characters(text: str, other: str) -> str:
        return text[len(commonprefix([text, other])) :]

    monkeypatch.setattr(abut.template.thinking, "after_common_prefix", after_common_characters)


@pytest.mark.usefixtures("cuts_in_tags")
def test_thinking_that_is_cut_inside_a_tag_is_found() -> None:
    found = audit(tiny_tokenizer(TAGS_ALIKE))
    assert not found.exact
    assert [problem.partition(":")[0] for problem in found.problems] == [
        "thinking",
        "thinking, enable_thinking=false",
    ]
    page = "\n".join(lines(found))
    assert "thinking, enable_thinking=false  NO, 2 of 2 are parsed differently" in page
    assert "      sample   'abutAnswer'\n      written  ('', 'abutAnswer')\n" in page


def test_calls_that_a_known_format_reads_and_the_processor_refuses_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(abut.template.calls.parser, "call_probes", lambda *_: iter(()))
    tokenizer = tiny_tokenizer(CALLS_BEHIND_THINKING)
    assert any(problem.startswith("calls: ") for problem in audit(tokenizer).problems)
    assert audit(tokenizer, roles=["user"]).exact, "who speaks as no tool hears no calls"
