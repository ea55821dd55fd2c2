"""Write the other generated pages of the reference: command line, settings, errors, messages."""

import argparse
import dataclasses
import re
from itertools import groupby
from typing import Any

import abut.openenv
from abut.cli.__main__ import _parser
from abut.rollout.config import RolloutConfig
from abut.samplers.settings import SamplingSettings
from scripts.docs.docstrings import linked, prose, text_of
from scripts.docs.messages import Message, all_messages
from scripts.docs.public_names import MADE, SITE, errors, package_at, places


def pages() -> dict[str, str]:
    """Return the pages by their path below `docs`."""
    return {
        "reference/cli.md": command_line(_parser()),
        "reference/settings.md": settings(),
        "reference/errors.md": error_page(),
        "reference/messages.md": message_page(all_messages()),
    }


# ---- The command line


def command_line(parser: argparse.ArgumentParser) -> str:
    """Return the page of a program: each command, with every argument and option."""
    lines = [
        "# Command line",
        "",
        f"The `{parser.prog}` program has the commands below. Results go to stdout; progress and "
        "errors go to stderr.",
        "",
    ]
    for command in _commands(parser):
        name = command.prog.removeprefix(f"{parser.prog} ")
        if command is not parser:
            lines += [f"## `{command.prog}` {{ #{name.replace(' ', '-')} }}", ""]
            lines += [_about(command, parser), ""]
        lines += ["```text", *_usage(command), "```", "", *_arguments(command), ""]
        if command.epilog:
            lines += [command.epilog, ""]
    return text_of(lines)


def _commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    found = [parser]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                found += _commands(command)
    return found


def _usage(command: argparse.ArgumentParser) -> list[str]:
    """Return the usage of a command, with the same width on every terminal."""
    formatter = argparse.HelpFormatter(command.prog, width=88)
    formatter.add_usage(command.usage, command._actions, command._mutually_exclusive_groups)
    usage = formatter.format_help().strip().removeprefix("usage: ")
    return usage.replace("\n" + " " * len("usage: "), "\n").splitlines()


def _arguments(command: argparse.ArgumentParser) -> list[str]:
    rows = []
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                about = _about(inner, command).partition(". ")[0].rstrip(".") + "."
                anchor = inner.prog.partition(" ")[2].replace(" ", "-")
                rows.append(f"| [`{name}`](#{anchor}) | | {about} |")
        elif not isinstance(action, argparse._HelpAction) and action.help != argparse.SUPPRESS:
            rows.append(f"| {_flags(action)} | {_default(action)} | {_help(command, action)} |")
    return ["| argument | default | |", "|---|---|---|", *rows] if rows else []


def _about(command: argparse.ArgumentParser, parser: argparse.ArgumentParser) -> str:
    """Return the description of a command, or its line in the list of commands."""
    if command.description:
        return _sentence(command.description)
    listed = [
        choice
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for choice in action._choices_actions
    ]
    lines = [line.help or "" for line in listed if command.prog.endswith(f" {line.dest}")]
    text = lines[0] if lines else ""
    return _sentence(text[:1].upper() + text[1:]).rstrip(".") + "."


def _flags(action: argparse.Action) -> str:
    value = action.metavar or ("" if action.choices is None else "{…}")
    if isinstance(value, tuple):
        value = " ".join(value)
    if not action.option_strings:
        return f"`{value or action.dest}`"
    takes = action.nargs != 0
    shown = value if value not in ("", "{…}") else action.dest.upper()
    return ", ".join(
        f"`{flag} {shown}`" if takes else f"`{flag}`" for flag in action.option_strings
    )


def _default(action: argparse.Action) -> str:
    if action.default in (None, False, "", argparse.SUPPRESS):
        return ""
    return f"`{action.default}`"


def _help(command: argparse.ArgumentParser, action: argparse.Action) -> str:
    formatter = command._get_formatter()
    text = formatter._expand_help(action) if action.help else ""
    if action.choices is not None:
        values = ", ".join(f"`{choice}`" for choice in action.choices)
        text = f"{text} ({values})" if text else f"One of {values}"
    return _sentence(text).replace("|", "\\|")


def _sentence(text: str) -> str:
    """Return help text as Markdown, with code formatting for what looks like code."""
    text = " ".join(text.split())
    code = r"(?<![`\w/-])(--[\w-]+|[\w-]+\.(?:jsonl|parquet|html|py|json)\b)(?!`)"
    return re.sub(code, r"`\1`", text)


# ---- Settings


def settings() -> str:
    """Return the page of all settings whose fields have a help text."""
    lines = [
        "# Settings",
        "",
        "These classes hold the settings of rollouts, of sampling and of environment servers. All "
        "of them are frozen dataclasses; a wrong value raises an error that names the field.",
        "",
    ]
    classes: dict[str, type] = {
        "abut.RolloutConfig": RolloutConfig,
        "abut.samplers.settings.SamplingSettings": SamplingSettings,
        "abut.openenv.Serve": abut.openenv.Serve,
        "abut.openenv.Docker": abut.openenv.Docker,
    }
    for path, cls in classes.items():
        described = package_at(path)
        lines += [f"## `{cls.__name__}` {{ #{path} }}", "", *prose(described.docstring)]
        for field in dataclasses.fields(cls):
            # Headings, not rows of a table, because the site's search leads to headings.
            kind = f"`{described.members[field.name].annotation}`".replace("'", '"')
            about = linked(field.metadata.get("help", ""))
            lines += [f"### `{field.name}` {{ #{path}.{field.name} }}", ""]
            lines += [f"{kind}{_field_default(field)}", "", about, ""]
    return text_of(lines)


def _field_default(field: "dataclasses.Field[Any]") -> str:
    if field.default is not dataclasses.MISSING:
        return f" = `{field.default!r}`".replace("'", '"')
    if field.default_factory is not dataclasses.MISSING:
        return f" = `{field.default_factory()!r}`"
    return ", required"


# ---- Errors


def error_page() -> str:
    """Return the page of all errors: what each means, what to do, and what raises it."""
    lines = [
        "# Errors",
        "",
        "Every error that abut raises on purpose is an `AbutError`, and also the builtin exception "
        "that it stands for. The message says what is wrong and where; a last line `hint: …` says "
        "what to do.",
        "",
        "```text",
        *re.findall(r"^    (.*)$", package_at("abut.errors").docstring.value, re.MULTILINE),
        "```",
        "",
        f"[Messages]({SITE}reference/messages/) lists the text of every message.",
        "",
    ]
    raised = _raised_by()
    for error in errors():
        bases = ", ".join(f"`{base}`" for base in error.bases)
        lines += [f"## `{error.name}` {{ #{error.name.lower()} }}", "", f"Subclass of {bases}.", ""]
        lines += prose(error.docstring)
        if names := raised.get(error.name):
            lines += [f"Raised by {', '.join(names)}.", ""]
    return text_of(lines)


def _raised_by() -> dict[str, list[str]]:
    """Return the public functions by the errors in their `Raises:` sections."""
    found: dict[str, list[str]] = {}
    for path, url in places().items():
        if not path.startswith("abut.") or "/errors/" in url:
            continue
        it = package_at(MADE.get(path, path))
        if not (it.is_class or it.is_function):
            continue
        callables = {path: it}
        if it.is_class:
            callables |= {
                f"{path}.{name}": one
                for name, one in it.members.items()
                if one.is_function and not name.startswith("_")
            }
        for name, one in callables.items():
            for error in _RAISES.findall(_doc(one)):
                anchor = url if name == path else f"{url}{name.removeprefix(path)}"
                listed = f"[`{name.removeprefix('abut.')}`]({anchor})"
                if listed not in found.setdefault(error, []):
                    found[error].append(listed)
    return found


_RAISES = re.compile(r"^\s+(\w+Error|InvalidAction|TeacherUnavailable): ", re.MULTILINE)


def _doc(it: Any) -> str:
    return it.docstring.value.partition("Raises:")[2] if it.docstring else ""


# ---- Messages


def message_page(messages: list[Message]) -> str:
    """Return the page of all messages, by module."""
    lines = [
        "# Messages",
        "",
        "These are the texts of every error, warning, notice and command of abut, by module. To "
        "find a message, search this page for a few of its words. A value that is filled in "
        "appears as `{name}` or `%s`; a *part* is put into other messages.",
        "",
    ]
    for path, found in groupby(messages, key=lambda message: message.path):
        name = path.removeprefix("python/").removesuffix(".py").replace("/", ".")
        lines += [f"## `{name.removesuffix('.__init__')}` {{ #{name.replace('__', '')} }}", ""]
        for message in found:
            text = message.text.strip("\n")
            kind = "part" if message.kind == "text" else message.kind
            lines.append(f"- {kind}: {_code(text)}")
        lines.append("")
    return text_of(lines)


def _code(text: str) -> str:
    """Return a string as inline code, also if it contains backticks."""
    lines = [line for line in text.split("\n") if line]
    return "<br>".join(f"`` {line} ``" if "`" in line else f"`{line}`" for line in lines)
