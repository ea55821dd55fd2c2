"""The generated reference has every public name, option, setting and error, and every message."""

import argparse
import dataclasses
import re

import pytest

import abut
import abut.errors
import abut.harbor
import abut.openenv
from abut.cli.__main__ import _parser
from abut.samplers.settings import SamplingSettings
from scripts.docs import api, public_names, reference
from scripts.docs.docstrings import linked
from scripts.docs.messages import all_messages, python_messages, rust_messages
from scripts.docs.phrases import FORBIDDEN, docstrings, offences, paragraphs
from tests.test_public_api import MODULES, TABLE

API = api.pages()
OTHERS = reference.pages()
ANCHORS = {
    anchor
    for page in [*API.values(), *OTHERS.values()]
    for anchor in re.findall(r'\{ #(\S+) \}|<a id="([^"]+)">', page)
    for anchor in anchor
    if anchor
}
ERRORS = {
    name: value
    for name, value in vars(abut.errors).items()
    if isinstance(value, type) and issubclass(value, abut.AbutError)
}


def test_every_public_name_is_in_the_api() -> None:
    paths = {f"abut.{name}" for name in abut.__all__ if name not in {*ERRORS, "__version__"}}
    for module, names in {**MODULES, "harbor": abut.harbor.__all__}.items():
        paths |= {f"abut.{module}.{name}" for name in names if name not in ERRORS}
    assert paths - ANCHORS == set()
    assert {"abut.trl.GRPOTrainer", "abut.trl.DistillationTrainer"} <= ANCHORS


def test_every_public_member_is_in_the_api() -> None:
    missing, path = [], ""
    for line in TABLE.replace("\\\n", "").split("\n")[1:-1]:
        name = re.match(r"\s*([\w.]+)", line)
        assert name is not None
        if not line.startswith(" "):
            path = f"abut.{name[1]}"
        elif path.rpartition(".")[2] not in ERRORS and f"{path}.{name[1]}" not in ANCHORS:
            missing.append(f"{path}.{name[1]}")
    assert missing == []


def test_a_page_of_the_api_describes_parameters_types_and_errors() -> None:
    page = API["reference/api/trl.md"]
    section = page.partition("## `make_rollout_func`")[2].partition("\n## ")[0]
    assert "    config: RolloutConfig | None = None,\n" in section
    assert re.search(r"^- `EnvArgument` is `", section, re.MULTILINE)
    assert re.search(r"^- `recorder`: \w", section, re.MULTILINE)
    assert (
        f"- [`MissingExtraError`]({public_names.SITE}reference/errors/#missingextraerror): "
        in section
    )


def test_an_attribute_is_described_once_in_the_table() -> None:
    section = API["reference/api/trl.md"].partition("## `Returns`")[2].partition("\n## ")[0]
    assert "**Attributes**" not in section
    (row,) = re.findall(r"^\| .*`discount`.*$", section, re.MULTILINE)
    assert "`float` | the factor on a reward" in row


def test_a_page_that_a_docstring_names_in_backticks_is_a_link() -> None:
    expected = f"[`docs/how-to/view.md`]({public_names.SITE}how-to/view/)"
    assert linked("see `docs/how-to/view.md` first") == f"see {expected} first"
    assert "`[docs/" not in "".join(API.values())


def test_every_command_and_option_is_in_the_page() -> None:
    page = OTHERS["reference/cli.md"]
    commands = reference._commands(_parser())
    assert len(commands) > 8
    for command in commands[1:]:
        assert f"## `{command.prog}` {{" in page
        for action in command._actions:
            for option in set(action.option_strings) - {"-h", "--help"}:
                assert f"`{option}" in page.partition(f"## `{command.prog}`")[2], option


def test_an_option_appears_with_its_value_default_and_choices() -> None:
    parser = argparse.ArgumentParser("walk")
    command = parser.add_subparsers().add_parser("far", help="walk far away")
    command.add_argument("--pace", metavar="N", type=int, default=3, help="steps, see --fast")
    command.add_argument("--gait", choices=["trot", "run"])
    page = reference.command_line(parser)
    assert "| `--pace N` | `3` | steps, see `--fast` |" in page
    assert "| `--gait GAIT` |  | One of `trot`, `run` |" in page
    assert "| [`far`](#far) | | Walk far away. |" in page


@pytest.mark.parametrize(
    "cls", [abut.RolloutConfig, SamplingSettings, abut.openenv.Serve, abut.openenv.Docker]
)
def test_every_setting_is_in_the_page_with_its_default_and_help(cls: type) -> None:
    page = OTHERS["reference/settings.md"].partition(f"## `{cls.__name__}`")[2]
    for field in dataclasses.fields(cls):
        described = re.search(
            rf"\n### `{field.name}` {{ #\S+ }}\n\n`.+`(?: = `.*`|, required)\n\n(.*)\n", page
        )
        assert described is not None, field.name
        assert len(described[1]) > 10, f"{field.name} has no help text"


@pytest.mark.parametrize("error", ERRORS.values(), ids=lambda error: error.__name__)
def test_every_error_has_a_cause_and_a_cure(error: type[Exception]) -> None:
    cause, _, cure = (error.__doc__ or "").partition("\n\n")
    assert cause.endswith(".")
    assert len(cure.strip()) > 40
    assert (
        f"\n## `{error.__name__}` {{ #{error.__name__.lower()} }}\n"
        in OTHERS["reference/errors.md"]
    )


def test_an_error_lists_what_raises_it() -> None:
    section = (
        OTHERS["reference/errors.md"].partition("## `MissingExtraError`")[2].partition("\n## ")[0]
    )
    assert (
        f"[`trl.make_rollout_func`]({public_names.URL}trl/#abut.trl.make_rollout_func)" in section
    )


# ---- Messages

SOURCE = '''
"""A docstring that is not a message."""

HINT = "hint: walk on the other side"

def walk(steps: "int or any number of it", shoe) -> "a path of some kind":
    """Walk, says this docstring."""
    if steps < 0:
        raise ValueError(
            f"steps={short(steps)}: must be at least 0, {shoe.left_one} and {type(shoe).__name__} "
            + "do not help\\n" + HINT
        )
    logger.warning("%d steps are a long way", steps)
    logger.info("a walk has begun")
    parser.add_argument("--pace", help="how fast to walk")
    json.loads('{"a": 1}'), "two words", re.compile(r"a pattern\\s with words")
    return {True: "the end of a walk"}
'''


def test_messages_are_found_with_their_kind_and_their_holes() -> None:
    assert [(one.kind, one.text) for one in python_messages(SOURCE, "walk.py")] == [
        ("text", "hint: walk on the other side"),
        (
            "error",
            "steps={steps}: must be at least 0, {left_one} and {type} do not help\n{HINT}",
        ),
        ("warning", "%d steps are a long way"),
        ("notice", "a walk has begun"),
        ("help", "how fast to walk"),
        ("text", "the end of a walk"),
    ]


def test_messages_of_rust_are_found_without_comments_proofs_and_tests() -> None:
    source = r"""
        // "a comment that has words"
        #[error("token {token} is not in the vocabulary\n\
                 hint: use \"its\" tokenizer")]
        let x = y.expect("the caller has checked it");
        reason: format!("a text of three {words}"),
        #[expect(lint, reason = "it is needed below")]
        #[cfg(test)]
        mod tests { fn f() { panic!("a test that has failed") } }
    """
    assert [one.text for one in rust_messages(source, "a.rs")] == [
        'token {token} is not in the vocabulary\nhint: use "its" tokenizer',
        "a text of three {words}",
    ]


def test_the_list_has_the_messages_of_python_and_rust() -> None:
    texts = {message.text for message in all_messages()}
    assert len(texts) > 1_500
    page = OTHERS["reference/messages.md"]
    assert "## `abut.rollout.config`" in page
    assert "## `rust.core.src.error.rs`" in page
    assert "module {name} has no attribute {name}" in page


def test_no_message_sounds_translated() -> None:
    found = {
        f"{message.path}:{message.line}: {phrase!r} -> {instead}"
        for message in all_messages()
        for phrase, instead in offences(message.text)
    }
    assert found == set()


@pytest.mark.parametrize("name", [*API, "reference/cli.md", "reference/settings.md"])
def test_no_docstring_of_the_api_and_no_help_sounds_translated(name: str) -> None:
    text = API.get(name) or OTHERS[name]
    found = [(one.text, offences(one.text)) for one in paragraphs(text, name)]
    assert [(text[:100], phrases) for text, phrases in found if phrases] == []


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("what answers is no server of vLLM", "is no"),
        ("the template knows no tools", "knows no"),
        ("Whether rows are trained.", "Whether"),
        ("None says that there is no score", "that there is"),
        ("what comes back must be a number", "comes back"),
        ("the token behind the call", "behind"),
        ("expected a text, got 3", "a text"),
        ("{x} is none of user, tool", "is none of"),
        ("it writes thoughts otherwise than text", "otherwise than"),
        ("an environment class of yours", "of yours"),
    ],
)
def test_a_phrase_that_sounds_translated_is_found(text: str, phrase: str) -> None:
    assert phrase in [found for found, _ in offences(text)]


@pytest.mark.parametrize(
    "text",
    [
        "there is no reward, and the file is no longer there",
        "the server behind a proxy takes a text file",
        "{token} stands for an image",
        "what failed, and where?",
        "the tokens of the first and those of the second",
    ],
)
def test_plain_english_is_not_taken_for_translated(text: str) -> None:
    assert offences(text) == []


def test_docstrings_and_pages_are_read_too() -> None:
    assert [one.text for one in docstrings('"""A."""\nx = 1\n"""B."""\n', "a.py")] == ["A.", "B."]
    page = "# Title\n\nA `code of yours` here.\n\n```\nan example of yours\n```\n"
    assert [one.text for one in paragraphs(page, "a.md")][:2] == ["# Title", "A `…` here."]
    assert not any("yours" in one.text for one in paragraphs(page, "a.md"))


def test_every_pattern_compiles_and_says_what_to_write() -> None:
    assert all(re.compile(pattern) and instead for pattern, instead in FORBIDDEN.items())
