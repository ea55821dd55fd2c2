"""Runs a page of the documentation as a reader does: from top to bottom, in one empty folder.

| on the page | in the run |
|---|---|
| a block with a title (```` ```python title="guess.py" ````) | the file of that name |
| a block with a title like `add to guess.py` | the end of that file |
| ```` ```sh ```` | typed into a shell, one command after the other; each must succeed |
| ```` ```text ```` behind commands | what they print, stdout and stderr together |

A line of the output that begins with `you> ` is typed where the program asks for it. Lines that
install packages are not run, because a test has them already. What else a page shows is for the
test to name: commands that it does not run, and outputs that differ from run to run.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.kit.checkout import IMPORT_PATH, ROOT
from tests.kit.forks import python

Check = Callable[[str, str], None]
"""Given the output that the page shows and the one that was printed; asserts that they agree."""

_PROMPT = "you> "
_BLOCK = re.compile(
    r"^```(?P<language>[\w-]+)(?: +title=\"(?P<title>[^\"]+)\")?[^\n]*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_LIMIT_S = 540.0


class Block(NamedTuple):
    """A fenced block of a page; `line` is that of its first fence."""

    language: str
    title: str | None
    text: str
    line: int


class Typed(NamedTuple):
    """Commands of a page, the output that the page shows (None: none), and what they printed."""

    commands: str
    shown: str | None
    printed: str


def page_path(page: str | Path) -> Path:
    """Find a page by its path below `docs`, or by its name alone; `README.md` is the checkout's."""
    if isinstance(page, Path):
        return page
    if page == "README.md":
        return ROOT / page
    (path,) = (ROOT / "docs").rglob(page)
    return path


def page_blocks(page: str | Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = page_path(page).read_text(encoding="utf-8")
    return [
        Block(one["language"], one["title"], one["text"], text.count("\n", 0, one.start()) + 1)
        for one in _BLOCK.finditer(text)
    ]


def run_page(
    page: str | Path,
    folder: Path,
    *,
    not_run: Collection[str] = (),
    differs: Mapping[str, Check] | None = None,
    may_fail: Collection[str] = (),
    before: Mapping[str, Callable[[Path], None]] | None = None,
) -> list[Typed]:
    """Run a page in `folder`, compare every output with the page, and return what was typed.

    Args:
        page: as in `page_path`.
        folder: an empty folder.
        not_run: beginnings of commands that are not run.
        differs: by the beginning of a command, how its output is compared; others must be equal.
            A beginning that no command has is an error.
        may_fail: beginnings of commands whose exit status is not looked at.
        before: by the beginning of a command, what a person does in the folder before it.
    """
    checks = dict(differs or {})
    unused = {*not_run, *checks}
    typed: list[Typed] = []
    for commands, shown in _steps(page_blocks(page), folder):
        left_out = [start for start in not_run if commands.startswith(start)]
        unused.difference_update(left_out)
        if left_out:
            continue
        for start, act in (before or {}).items():
            if commands.startswith(start):
                act(folder)
        fails = any(commands.startswith(start) for start in may_fail)
        printed = run_commands(commands, _answers(shown), folder, fails=fails)
        typed.append(Typed(commands, shown, printed))
        starts = [start for start in checks if commands.startswith(start)]
        unused.difference_update(starts)
        if shown is None:
            continue
        if starts:
            checks[starts[0]](shown, printed)
        else:
            assert printed == shown, f"{page}: {commands}"
    assert not unused, f"{page} has no such command: {sorted(unused)}"
    return typed


def same_but_for_numbers(shown: str, printed: str) -> None:
    """Assert that two outputs have the same words and lines; numbers and blanks may differ."""
    assert _without_numbers(printed) == _without_numbers(shown), printed


def not_compared(shown: str, printed: str) -> None:
    """Take any output: the test has assertions of its own about it."""


def numbers_of(text: str) -> list[float]:
    """Return all numbers of a text, in order."""
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", text)]


def _without_numbers(text: str) -> str:
    text = re.sub(r" \(\d+:\d\d:\d\d\)", "", text)  # pytest, if it took a minute
    text = re.sub(r"\d+(?:\.\d+)?(?:e-?\d+)?", "#", text)
    return re.sub(r"[ \t]+", " ", text)


def _steps(blocks: list[Block], folder: Path) -> Iterator[tuple[str, str | None]]:
    """Write the files of a page as they come, and yield its commands with the output shown."""
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        if block.title is not None:
            name = block.title.removeprefix("add to ")
            before = (folder / name).read_text(encoding="utf-8") if name != block.title else ""
            (folder / name).write_text(before + block.text, encoding="utf-8")
        elif block.language == "sh":
            lines = block.text.replace("\\\n", "").splitlines()
            kept = [line for line in lines if line.strip() and not _installs(line)]
            is_output = following is not None and following.language == "text"
            if kept:
                yield "\n".join(kept), following.text if following and is_output else None


def _installs(line: str) -> bool:
    return re.match(r"(pip|uv|git|cd|python3? -m venv|\. |source )", line) is not None


def _answers(shown: str | None) -> list[str]:
    """Return the lines that the page's reader types into a program."""
    lines = (shown or "").splitlines()
    return [line.removeprefix(_PROMPT) for line in lines if line.startswith(_PROMPT)]


def run_commands(commands: str, answers: list[str], folder: Path, *, fails: bool = False) -> str:
    """Run commands; they have a terminal if there is something to type, and none otherwise."""
    # Where a browser is, no TRL is: then another Python runs the page.
    other = os.environ.get("ABUT_DEMO_PYTHON")
    # Environments of tests import abut without having its command. A fork's pytest would warn of
    # plugins that are imported already.
    programs = {"pytest": [other or sys.executable, "-m", "pytest"]}
    if "abut" in commands:
        programs["abut"] = [other, "-m", "abut.cli"] if other else python("-m", "abut.cli")
    functions = "".join(
        f'{name}() {{ {shlex.join(words)} "$@"; }}\n' for name, words in programs.items()
    )
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(other or sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": IMPORT_PATH,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_ADDOPTS": "-p no:cacheprovider",
        "HF_HUB_OFFLINE": "1",
        "TERM": "dumb",
    }
    started = ["bash", "-e", "-c", functions + commands]
    if not answers:
        done = subprocess.run(
            started,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LIMIT_S,
        )
        assert fails or done.returncode == 0, f"{commands}\n{done.stdout}"
        return done.stdout
    import pty  # Windows has none

    ours, theirs = pty.openpty()
    with subprocess.Popen(
        started, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        try:
            printed = _talk(ours, list(answers))
        finally:
            os.close(ours)
    assert process.returncode == 0, f"{commands}\n{printed}"
    return printed


def _talk(terminal: int, answers: list[str]) -> str:
    """Type the answers, each when it is asked for; returns all that the terminal showed."""
    printed, asked = b"", 0
    while True:
        try:
            read = os.read(terminal, 65536)
        except OSError:  # Linux: the program has ended
            read = b""
        if not read:
            break
        printed += read
        if printed.count(_PROMPT.encode()) > asked and printed.endswith(_PROMPT.encode()):
            asked += 1
            os.write(terminal, (answers.pop(0) if answers else "").encode() + b"\n")
    return printed.decode().replace("\r\n", "\n")
