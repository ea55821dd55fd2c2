"""Harnesses as processes: whatever they do, they cost their rollout alone, and nothing is left.

The program is `scripted_harness.py`, which runs what its prompt says. The real ones are played by
`make test-agents`.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from abut import AgentResult
from abut.agents import ClaudeCode, Codex, HarnessResult
from abut.agents.harness_process import HarnessProcess, Kept, Redactor, delete_folder
from abut.errors import EnvError, MissingExtraError
from abut.rollout.rollout import StopReason
from tests.kit.stage.agents import check_tree, harness_time_is_over, play_agents
from tests.kit.stage.rollouts import LIMIT_S, Played, Stage, eventually

pytestmark = pytest.mark.skipif(not hasattr(os, "killpg"), reason="harnesses need process groups")

SCRIPT = Path(__file__).with_name("scripted_harness.py")
ROOT = Path(__file__).parents[2]
ON_LINUX = sys.platform.startswith("linux")


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "harness"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{SCRIPT}" "$@"\n')
    path.chmod(0o755)
    return str(path)


class Scored:
    """A reward that keeps what it saw."""

    def __init__(self, reward: Any = 1.0) -> None:
        self.reward = reward
        self.seen: list[HarnessResult] = []
        self.pids: list[int] = []

    def __call__(self, result: HarnessResult) -> Any:
        self.seen.append(result)
        pids = result.cwd / "pids"
        self.pids += map(int, pids.read_text().split()) if pids.exists() else []
        return self.reward

    @property
    def one(self) -> HarnessResult:
        (result,) = self.seen
        return result


def is_alive(pid: int) -> bool:
    """Zombies are dead: nobody waits for orphans in some containers."""
    done = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return done.stdout.strip()[:1] not in ("", "Z")


def play(stage: Stage, harness: Any, **options: Any) -> Played:
    return play_agents(stage, harness, retries=0, max_failed_frac=1.0, **options)


def events(result: HarnessResult) -> list[Any]:
    return [json.loads(line) for line in result.transcript.splitlines()]


def test_a_harness_is_one_conversation_and_its_reward(stage: Stage, program: str) -> None:
    reward = Scored(0.5)
    says = "ask(3); event(type='result', result='All done.')"
    played = play(stage, ClaudeCode(says, reward, program=program))
    rollout = played.one
    assert (rollout.error, rollout.reward, len(rollout.turns)) == (None, 0.5, 3)
    check_tree(rollout, played.sampler.calls)
    assert reward.one.answer == "All done."
    assert reward.one.exit_status == 0
    assert [e.get("status") for e in events(reward.one)] == [200, 200, 200, None]
    assert rollout.extras == {"transcript": reward.one.transcript, "exit_status": 0}
    assert not reward.one.cwd.parent.exists()


def test_it_gets_what_is_named_and_no_variable_of_the_trainer(
    stage: Stage, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-trainer")
    monkeypatch.setenv("ABUT_GATEWAY_KEY", "the-key-of-the-run")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.py").write_text("1")
    reward = Scored()
    harness = ClaudeCode(
        "ask(); show()",
        reward,
        tmp_path / "source",
        program=program,
        args=["--max-turns", "3"],
        environ={"EDITOR": "ed"},
    )
    assert play(stage, harness).one.error is None
    shown = events(reward.one)[-1]
    assert shown["args"][-2:] == ["--max-turns", "3"]
    assert "--model=claude-sonnet-4-5" in shown["args"]
    assert (shown["cwd"], shown["files"]) == (str(reward.one.cwd), ["a.py"])
    environ = shown["environ"]
    named = {"PATH", "HOME", "TMPDIR", "LANG", "TERM", "EDITOR", "ABUT_HARNESS"}
    sets = {"ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"}
    off = {f"DISABLE_{what}" for what in ("AUTOUPDATER", "BUG_COMMAND", "ERROR_REPORTING")}
    of_the_shell = {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}
    assert set(environ) - of_the_shell == named | sets | off | {"DISABLE_TELEMETRY"}
    assert Path(environ["HOME"]).parent == Path(environ["TMPDIR"]).parent == reward.one.cwd.parent
    assert environ["ANTHROPIC_API_KEY"] == "<KEY>"  # the transcript is recorded


def test_task_folder_and_reward_are_made_of_columns(stage: Stage, program: str) -> None:
    def task(issue: str) -> str:
        return f"ask(); event(type='result', result={issue!r} + open('name').read())"

    async def fill(folder: Path, name: str) -> None:
        (folder / "name").write_text(name)

    def reward(result: HarnessResult, name: str, episode_seed: int) -> AgentResult:
        told = {"answer": result.answer, "seed": episode_seed, "exit_status": "mine"}
        return AgentResult(float(len(name)), told)

    columns = [{"issue": "fix ", "name": "abc", "other": 1}]
    rollout = play(stage, ClaudeCode(task, reward, fill, program=program), columns=columns).one
    assert (rollout.error, rollout.reward) == (None, 3.0)
    del rollout.extras["transcript"]
    assert rollout.extras == {"answer": "fix abc", "seed": 7, "exit_status": "mine"}


def test_a_row_without_a_column_that_it_needs_is_not_played(stage: Stage, program: str) -> None:
    from abut.agents import UnplayableRow

    def task(issue: str) -> str:
        raise AssertionError

    with pytest.raises(UnplayableRow, match="task needs the column 'issue'"):
        play(stage, ClaudeCode(task, Scored(), program=program))


FAIL = """
ask()
for number in range(30):
    print("line", number, file=sys.stderr)
print("the key is", os.environ["ANTHROPIC_API_KEY"], "and", os.environ["TOKEN"], file=sys.stderr)
sys.exit(3)
"""


def test_a_harness_that_exits_with_an_error_and_has_a_reward_has_ended(
    stage: Stage, program: str
) -> None:
    reward = Scored(0.25)
    rollout = play(stage, ClaudeCode(FAIL, reward, program=program, environ={"TOKEN": "t"})).one
    assert (rollout.error, rollout.reward, reward.one.exit_status) == (None, 0.25, 3)
    assert rollout.extras["exit_status"] == 3


def test_without_a_reward_it_has_failed_and_its_last_lines_are_in_the_error(
    stage: Stage, program: str
) -> None:
    environ = {"TOKEN": "a-secret-of-mine"}
    rollout = play(stage, ClaudeCode(FAIL, Scored(None), program=program, environ=environ)).one
    assert rollout.failed
    assert rollout.error is not None
    first, *lines = rollout.error.splitlines()
    assert first == "EnvError: Claude Code exited with status 3; the end of its output:"
    assert lines[:19] == [f"  line {number}" for number in range(11, 30)]
    assert lines[19] == "  the key is <KEY> and <TOKEN> (after 1 calls)"
    assert len(lines) == 20


def test_an_exit_without_error_and_without_a_reward_is_no_failure(
    stage: Stage, program: str
) -> None:
    rollout = play(stage, ClaudeCode("ask()", Scored(None), program=program)).one
    assert (rollout.failed, rollout.reward) == (False, None)


def test_what_could_not_be_measured_is_no_failure_whatever_the_exit_status(
    stage: Stage, program: str
) -> None:
    result = AgentResult(None, measured=False)
    rollout = play(stage, ClaudeCode("ask(); sys.exit(1)", Scored(result), program=program)).one
    assert (rollout.failed, rollout.measured) == (False, False)


def test_one_that_dies_by_a_signal(stage: Stage, program: str) -> None:
    reward = Scored(0.0)
    dies = "ask(); os.kill(os.getpid(), signal.SIGKILL)"
    assert play(stage, ClaudeCode(dies, reward, program=program)).one.error is None
    assert reward.one.exit_status == -signal.SIGKILL


class Left:
    """The folder of a harness, and the processes that it has listed there."""

    def __init__(self) -> None:
        self.folders: list[Path] = []

    def fill(self, folder: Path) -> None:
        self.folders.append(folder)

    def pids(self) -> list[int]:
        files = [folder / "pids" for folder in self.folders]
        return [int(pid) for file in files if file.exists() for pid in file.read_text().split()]


def test_one_that_hangs_is_killed_when_its_time_is_over(
    stage: Stage, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = "ask(); event(type='result', result='so far'); hang()"
    for given, error in (
        (0.5, None),
        (None, "EnvError: Claude Code did not end within timeout_s=60; the end of its output:\n"),
    ):
        reward, left = Scored(given), Left()
        harness_time_is_over(monkeypatch, lambda left=left: bool(left.pids()))  # type: ignore[misc]
        harness = ClaudeCode(hangs, reward, left.fill, program=program, timeout_s=60)
        rollout = play(stage, harness).one
        assert rollout.reward == given
        assert (rollout.error or "").startswith(error or "")
        assert rollout.failed == (error is not None)
        assert (reward.one.exit_status, reward.one.answer) == (None, "so far")
        assert reward.pids
        assert not any(map(is_alive, reward.pids))


def test_one_that_outlives_its_rollout_is_killed_with_it(
    stage: Stage, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("abut.gateway.play.agent_episode._GRACE_S", 0.1)
    left = Left()
    hangs = f"os.chdir({str(tmp_path)!r}); ask(); hang()"
    harness = ClaudeCode(hangs, Scored(), left.fill, program=program)
    rollout = play(stage, harness, rollout_timeout_s=LIMIT_S).one
    assert rollout.failed
    assert f"rollout_timeout_s={LIMIT_S:g}" in str(rollout.error)
    assert eventually(lambda: not left.folders[0].parent.exists())
    assert not any(is_alive(int(pid)) for pid in (tmp_path / "pids").read_text().split())


@pytest.mark.parametrize(
    "own_session",
    [False, pytest.param(True, marks=pytest.mark.skipif(not ON_LINUX, reason="found in /proc"))],
)
@pytest.mark.parametrize("ends", ["", "hang()"])
def test_what_it_leaves_behind_ends_with_it(
    stage: Stage, program: str, own_session: bool, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its children hold the pipes open, and take no notice of SIGTERM."""
    reward, left = Scored(), Left()
    if ends:
        harness_time_is_over(monkeypatch, lambda: len(left.pids()) == 3)
    leaves = f"ask(); leave({own_session}); leave({own_session}); {ends}"
    harness = ClaudeCode(leaves, reward, left.fill, program=program, timeout_s=600)
    assert play(stage, harness).one.error is None
    assert len(reward.pids) == 2 + bool(ends)
    assert not any(map(is_alive, reward.pids))


def test_a_folder_is_deleted_however_deep_it_is(stage: Stage, program: str) -> None:
    reward = Scored()
    rollout = play(stage, ClaudeCode("ask(); dig(3000)", reward, program=program)).one
    assert rollout.error is None
    assert not reward.one.cwd.parent.exists()


@pytest.mark.parametrize(
    ("does", "files"),
    [
        ("os.rename('../work', '../mine'); os.symlink('{other}', '../work')", []),
        ("os.rename('../work', '../mine'); open('../work', 'w').close()", []),
        ("os.rename('../work', '../mine')", []),
        ("os.chdir('/'); os.rename(cwd[:-5], '{other}/mine'); os.symlink('{other}', cwd[:-5])", []),
        ("open('mine', 'w').close()", ["mine"]),
    ],
)
def test_a_reward_gets_the_harness_s_folder_and_none_that_it_links_to(
    stage: Stage, program: str, tmp_path: Path, does: str, files: list[str]
) -> None:
    other = tmp_path / "other"
    (other / "work").mkdir(parents=True)
    (other / "work" / "of another").write_text("")
    seen: list[str] = []

    def reward(result: HarnessResult) -> float:
        seen.extend(file.name for file in result.cwd.iterdir())
        return 1.0

    says = f"ask(); cwd = os.getcwd(); {does.format(other=other)}"
    rollout = play(stage, ClaudeCode(says, reward, program=program)).one
    assert (rollout.error, rollout.reward, seen) == (None, 1.0, files)
    assert (other / "work" / "of another").exists()


def test_deleting_a_deep_folder_opens_few_files(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, resource, sys; from abut.agents.harness_process import delete_folder;"
        "from tests.agents.scripted_harness import dig; top = pathlib.Path(sys.argv[1], 'top');"
        "top.mkdir(); os.chdir(top); dig(3000); os.chdir('/');"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); assert delete_folder(top)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, cwd=ROOT)


def test_a_link_is_deleted_and_not_the_folder_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("1")
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "inside").symlink_to(tmp_path / "mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    assert delete_folder(tmp_path / "given")
    assert delete_folder(tmp_path / "link")
    assert (tmp_path / "mine" / "file").read_text() == "1"


def test_output_that_is_nested_deeply_is_no_answer(stage: Stage, program: str) -> None:
    reward = Scored()
    says = "ask(); event(type='result', result='Done.'); print('[' * 99999 + ']' * 99999)"
    rollout = play(stage, ClaudeCode(says, reward, program=program)).one
    assert (rollout.error, reward.one.answer) == (None, "Done.")


def test_a_flood_of_output_is_kept_in_part(stage: Stage, program: str) -> None:
    reward = Scored()
    floods = "event(first=1); flood(8); ask(); event(type='result', result='last')"
    assert play(stage, ClaudeCode(floods, reward, program=program)).one.error is None
    transcript = reward.one.transcript
    assert 2**20 - 2 * 1024 <= len(transcript) <= 2**21
    assert transcript.startswith('{"first": 1}\n')
    assert reward.one.answer == "last"
    assert " bytes left out]\n" in transcript


def test_both_ends_of_an_output_are_kept() -> None:
    for size in (1, 7, 64):
        kept, whole = Kept(20), bytes(range(97, 123)) * 4
        for start in range(0, len(whole), size):
            kept.add(whole[start : start + size])
        head, line, tail = kept.text().split("\n")
        assert head == "abcdefghij"
        assert whole.decode().endswith(tail)
        assert 10 <= len(tail) <= 20
        assert line == f"[{len(whole) - 10 - len(tail)} bytes left out]"
    kept = Kept(20)
    kept.add(b"all of it")
    assert kept.text() == "all of it"


def test_a_secret_is_replaced_before_its_line_is_cut(stage: Stage, program: str) -> None:
    says = """
ask()
print("x" * 485 + os.environ["ANTHROPIC_API_KEY"], file=sys.stderr)
print("y" * 485 + os.environ["TOKEN"], file=sys.stderr)
sys.exit(1)
"""
    environ = {"TOKEN": "a-secret-of-mine"}
    harness = ClaudeCode(says, Scored(None), program=program, environ=environ)
    error = str(play(stage, harness).one.error).splitlines()
    assert error[2:] == ["  " + "x" * 485 + "<KEY>", "  " + "y" * 485 + "<TOKEN> (after 1 calls)"]


def test_a_secret_is_replaced_before_the_middle_is_left_out(stage: Stage, program: str) -> None:
    reward = Scored()
    says = """
ask()
sys.stdout.flush()
written = os.environ["TOKEN"] * (2**22 // len(os.environ["TOKEN"]))
sys.stdout.write(written)
"""
    environ = {"TOKEN": "a-secret-of-mine"}
    harness = ClaudeCode(says, reward, program=program, environ=environ)
    assert play(stage, harness).one.error is None
    head, line, tail = reward.one.transcript.splitlines()[1:]
    assert line.endswith(" bytes left out]")
    assert set(head + tail) == set("<TOKEN>")


def test_a_secret_in_two_chunks_beside_the_other_pipe(tmp_path: Path) -> None:
    """Its halves arrive with an error between them, which must not hide the secret."""
    half = "import sys, time\nfor part in ('a-secret', '-of-mine'):\n"
    code = half + " print(part, end='', flush=True); time.sleep(.2); sys.stderr.write('!\\n')"
    process = HarnessProcess(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        environ={},
        prompt="",
        timeout_s=60,
        secret_names={"a-secret-of-mine": "<TOKEN>"},
    )
    process.run()
    assert process.transcript.text() == "<TOKEN>"
    assert "a-secret" not in process.last_lines()


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_secrets_are_replaced_the_longest_first_whatever_the_chunks(size: int) -> None:
    names = {"secret-1": "<A>", "secret-1-and-more": "<B>", "t-1-ends": "<C>"}
    text = b"a secret-1 secret-1-and-more, secret-1-and secret-1secret-1-ends t-1-ends s secret-"
    redactor = Redactor(names)
    chunks = [redactor.add(text[at : at + size]) for at in range(0, len(text), size)]
    shown = b"".join([*chunks, redactor.end()])
    assert shown == b"a <A> <B>, <A>-and <A><A>-ends <C> s secret-"
    assert Redactor(names).add(b"a line\n") == b"a line\n"  # nothing is held back in vain
    assert Redactor({}).add(b"a line\n") == b"a line\n"


def test_a_secret_of_several_lines_is_replaced_in_events_too(stage: Stage, program: str) -> None:
    reward = Scored()
    says = "ask(); event(pem=os.environ['PEM']); print(os.environ['PEM'])"
    environ = {"PEM": "-- BEGIN --\nabc\u00e9\n-- END --"}
    harness = ClaudeCode(says, reward, program=program, environ=environ)
    assert play(stage, harness).one.error is None
    assert reward.one.transcript.splitlines()[1:] == ['{"pem": "<PEM>"}', "<PEM>"]


def test_a_limit_of_calls_is_that_of_the_harness_or_of_the_run(stage: Stage, program: str) -> None:
    def statuses(harness: Any, **options: Any) -> list[int]:
        reward = Scored(1.0)
        harness._reward = reward
        rollout = play(stage, harness, **options).one
        assert (rollout.error, rollout.reward) == (None, 1.0)
        assert rollout.stop_reason is StopReason.MAX_CALLS
        return [event["status"] for event in events(reward.one)]

    one = ClaudeCode("ask(9)", Scored(), program=program, max_calls=2)
    assert statuses(one) == [200, 200, 400]
    assert statuses(one, max_calls=4) == [200, 200, 400]
    assert statuses(one, max_calls=1) == [200, 400]
    assert statuses(ClaudeCode("ask(9)", Scored(), program=program), max_calls=1) == [200, 400]
    with pytest.raises(ValueError, match=r"max_calls=0: must be at least 1, or None"):
        play(stage, ClaudeCode("ask()", Scored(), program=program, max_calls=0))


def test_its_key_does_not_reward_its_own_rollout(stage: Stage, program: str) -> None:
    reward = Scored(0.0)
    cheats = """
ask()
url = os.environ["ANTHROPIC_BASE_URL"] + "/end"
header = {"Authorization": "Bearer " + os.environ["ANTHROPIC_API_KEY"]}
try:
    urllib.request.urlopen(urllib.request.Request(url, b'{"reward": 1.0}', header))
except urllib.error.HTTPError as error:
    event(status=error.code)
"""
    rollout = play(stage, ClaudeCode(cheats, reward, program=program)).one
    assert (rollout.error, rollout.reward) == (None, 0.0)
    assert events(reward.one)[-1]["status"] >= 400


def test_a_prefix_gets_the_folders_and_the_names_of_the_variables(
    stage: Stage, program: str
) -> None:
    reward = Scored()
    prefix = ["sh", "-c", 'echo "$@"; shift 3; while [ "$1" != run ]; do shift; done; shift; "$@"']
    prefix += ["sh", "-v{folder}:{folder}", "-w", "{cwd}", "{env}", "run"]
    harness = Codex(
        """
os.environ["ANTHROPIC_BASE_URL"] = sys.argv[sys.argv.index("-c") + 1]
print(json.dumps({"item": {"type": "agent_message", "text": "by Codex"}}))
""",
        reward,
        program=program,
        command_prefix=prefix,
    )
    # It makes no call, so there is no row; the reward has seen it all the same.
    assert "made no call" in str(play(stage, harness).one.error)
    words = reward.one.transcript.splitlines()[0].split()
    cwd = str(reward.one.cwd)
    assert words[:3] == [f"-v{Path(cwd).parent}:{Path(cwd).parent}", "-w", cwd]
    names = words[3 : words.index("run")]
    assert "--env=OPENAI_API_KEY" in names
    assert "--env=HOME" in names
    assert "--env=PATH" not in names
    assert words[words.index("run") + 1 :][:2] == [program, "exec"]
    assert reward.one.answer == "by Codex"


def test_a_program_that_is_not_there_fails_its_rollout(stage: Stage, tmp_path: Path) -> None:
    rollout = play(stage, ClaudeCode("", Scored(), program=str(tmp_path / "none"))).one
    assert str(rollout.error).startswith("EnvError: Claude Code could not start: [Errno 2]")


def test_one_that_was_stopped_before_it_began_is_never_started(tmp_path: Path) -> None:
    process = HarnessProcess(
        ["sh", "-c", "touch began"], cwd=tmp_path, environ={}, prompt="", timeout_s=None
    )
    process.stop()
    process.run()
    assert process.exit_status is None
    assert not (tmp_path / "began").exists()


def test_a_trainer_that_exits_takes_its_harnesses_along(program: str, tmp_path: Path) -> None:
    code = f"""
import threading, time
from pathlib import Path
from abut.agents.harness_process import HarnessProcess
process = HarnessProcess([{program!r}], cwd=Path({str(tmp_path)!r}), environ={{"PATH": ""}},
                         prompt="leave(True); hang()", timeout_s=None)
threading.Thread(target=process.run, daemon=True).start()
while len(Path({str(tmp_path)!r}, "pids").read_text().split() if
          Path({str(tmp_path)!r}, "pids").exists() else []) < 2:
    time.sleep(0.01)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    assert eventually(lambda: not any(map(is_alive, pids if ON_LINUX else pids[1:])))


@pytest.mark.parametrize(
    ("harness", "message"),
    [
        (
            ClaudeCode,
            "abut.agents.ClaudeCode needs Claude Code: pip install 'abut[claude-code]', or "
            "program='/path/to/it'",
        ),
        (
            Codex,
            "abut.agents.Codex needs Codex: pip install 'abut[codex]', or program='/path/to/it'",
        ),
    ],
)
def test_without_its_package_a_harness_names_the_extra(
    harness: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("abut.agents.harness.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError) as raised:
        harness("task", Scored())
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"args": "--max-turns 3"},
            "args='--max-turns 3' is a string\nhint: use args=['--max-turns', '3']",
        ),
        (
            {"command_prefix": "nice"},
            "command_prefix='nice' is a string\nhint: use command_prefix=['nice']",
        ),
        (
            {"reward": 1.0},
            "reward=1.0 is not a function\n"
            "hint: define reward(result, …), which returns a number, None or an AgentResult",
        ),
    ],
)
def test_wrong_arguments_are_said_at_once(given: Any, message: str, program: str) -> None:
    with pytest.raises(TypeError) as raised:
        ClaudeCode(**{"task": "", "reward": Scored(), "program": program} | given)
    assert str(raised.value) == message


def test_without_process_groups_no_harness_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "killpg")  # as on Windows
    with pytest.raises(EnvError, match="Codex cannot run here: this system has no process"):
        Codex("task", Scored())


def test_a_harness_goes_to_other_processes(program: str) -> None:
    harness = ClaudeCode("task", Scored(), program=program, max_calls=3)
    assert pickle.loads(pickle.dumps(harness)).max_calls == 3
