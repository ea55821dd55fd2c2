"""Targets, and servers that are started here: real processes, which end with us.

uvicorn and docker are stand-ins of a few lines, found before the real ones.
"""

import asyncio
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from abut.envs.task import RolloutTask
from abut.errors import EnvError
from abut.openenv import Docker, OpenEnv, Serve
from abut.openenv.server_process import ServerProcess
from abut.openenv.target import servers_of, space_url
from abut.openenv.wire import socket_url
from abut.rollout.rollout import Rollout
from tests.kit.checkout import ROOT
from tests.kit.stage.rollouts import LIMIT_S, Recording, Stage, assert_done, eventually

# Serves what the app says; `{"message": "die"}` ends the process.
UVICORN = """
import importlib, os, sys, time
sys.path.insert(0, {tests!r})
from tests.kit.servers.wire_server import WireServer

class Dying(WireServer):
    async def _observe(self, socket, text, reward, done):
        if text == "die":
            print("a last word", flush=True)
            os._exit(3)
        await super()._observe(socket, text, reward, done)

def run(app, *, host, port, **settings):
    module, _, name = app.partition(":")
    print("starting", flush=True)
    with Dying(port=port, **getattr(importlib.import_module(module), name)):
        time.sleep(1000)
"""
DOCKER = """#!{python}
import os, pathlib, sys
log = pathlib.Path({folder!r}, "docker.log")
with log.open("a") as file:
    print(*sys.argv[1:], file=file)
if sys.argv[1] == "run":
    port = sys.argv[sys.argv.index("--publish") + 1].split(":")[1]
    sys.path.insert(0, {folder!r})
    import uvicorn
    if sys.argv[-1] == "nothing":
        sys.exit("Unable to find image 'nothing'")
    uvicorn.run("apps:" + sys.argv[-1], host="", port=int(port))
"""
APPS = """
import os
plain = {}
broken = {"constructor_error": "FACTORY_ERROR"}
one = {"max_sessions": 1, "step_s": 0.05}
pid = {"first": lambda kwargs: f"{os.getpid()} {os.environ.get('WORD')}"}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tests = str(ROOT)
    (tmp_path / "uvicorn.py").write_text(UVICORN.format(tests=tests))
    (tmp_path / "apps.py").write_text(APPS)
    docker = tmp_path / "docker"
    docker.write_text(DOCKER.format(python=sys.executable, folder=str(tmp_path)))
    docker.chmod(docker.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def play(stage: Stage, openenv: OpenEnv, n: int = 1, says: str = "yes", **options: Any) -> Any:
    sampler = Recording(stage.says(says))
    tasks = [RolloutTask(i, f"r{i}", openenv, [], "seed", i) for i in range(n)]
    return stage.engine(sampler, max_failed_frac=1, **options).run(tasks)


def first(rollout: Rollout) -> str:
    assert_done(rollout)
    return str(rollout.messages[0]["content"])


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # Ended, and its new parent has not noticed.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


# ---- addresses


@pytest.mark.parametrize(
    ("target", "url"),
    [
        ("http://a:8000", "http://a:8000"),
        ("https://a/base/", "https://a/base"),
        ("ws://a:1/ws", "http://a:1"),
        ("wss://a", "https://a"),
        ("hf:openenv/echo_env", "https://openenv-echo-env.hf.space"),
        ("hf:My.Org/My-Space", "https://my-org-my-space.hf.space"),
    ],
)
def test_a_target_is_an_address(target: str, url: str) -> None:
    (host,) = servers_of(target)
    assert asyncio.run(host.url()) == url


def test_a_socket_is_at_ws() -> None:
    assert socket_url("http://a:1") == "ws://a:1/ws"
    assert socket_url("https://a/base") == "wss://a/base/ws"


def test_targets_and_replicas_add_up() -> None:
    targets = ["http://a", Serve("p.app:app", replicas=3), Docker("image", replicas=2), "serve:m:a"]
    names = ["http://a", *["serve:p.app:app"] * 3, *["docker:image"] * 2, "serve:m:a"]
    assert [host.name for host in servers_of(targets)] == names


@pytest.mark.parametrize(
    ("target", "error", "text"),
    [
        (
            "localhost:8000",
            ValueError,
            "target='localhost:8000': must be http://…, serve:package.server.app:app, hf:org/space "
            "or docker:image",
        ),
        ("hf:space", ValueError, "target='hf:space': must be hf:org/space"),
        ([], ValueError, "target=[]: must name at least one server"),
        ([1], TypeError, "target must be a str, Serve or Docker, got int"),
        ("serve:app", ValueError, "Serve.app='app': must be like 'package.server.app:app'"),
    ],
)
def test_what_is_no_target_is_named(target: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as raised:
        servers_of(target)
    assert str(raised.value) == text


def test_replicas_are_one_or_more() -> None:
    for made in (Serve, Docker):
        with pytest.raises(ValueError, match="replicas") as raised:
            made("a:b", replicas=0)
        assert str(raised.value) == f"{made.__name__}.replicas=0: must be at least 1"


def test_a_space_has_the_address_that_the_hub_gives_it() -> None:
    assert space_url("a/B_c.d") == "https://a-b-c-d.hf.space"


# ---- processes


def test_a_served_app_is_started_and_ended(stage: Stage, folder: Path) -> None:
    app = Serve("apps:pid", cwd=folder, environ={"WORD": "w"})
    with OpenEnv(app) as openenv:
        said = {first(rollout) for rollout in play(stage, openenv, 4)}
        (pid, word) = next(iter(said)).split()
        assert (len(said), word) == (1, "w")
        assert not gone(int(pid))
    assert gone(int(pid))


SECRETS = (
    *("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "HF_TOKEN", "AWS_ACCESS_KEY_ID", "PGPASSWORD"),
    *("AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "ABUT_GATEWAY_KEY", "SSH_AUTH_SOCK", "MYSQL_PWD"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "GITHUB_TOKEN", "AZURE_CLIENT_SECRET", "serper_apikey"),
)
NO_SECRETS = ("TOKENIZERS_PARALLELISM", "MAX_TOKENS", "PWD", "KEYBOARD", "AUTHOR", "GAME")


def test_a_served_app_gets_no_secrets_of_the_trainer(
    stage: Stage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*SECRETS, *NO_SECRETS):
        monkeypatch.setenv(name, str(folder))
    (folder / "apps.py").write_text(
        "import os\napp = {'first': lambda kwargs: ' '.join(sorted(os.environ))}\n"
    )
    app = Serve("apps:app", cwd=folder, environ={"HF_TOKEN": "given"})
    with OpenEnv(app) as openenv:
        names = {*first(play(stage, openenv)[0]).split()}
    assert names & {*SECRETS} == {"HF_TOKEN"}
    assert names >= {*NO_SECRETS, "PATH", "HOME"}


def test_an_app_that_cannot_start_names_the_variables_that_it_did_not_get(
    stage: Stage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh")
    (folder / "apps.py").write_text("import os; os.environ['HF_TOKEN']")
    with OpenEnv(Serve("apps:app", cwd=folder)) as openenv:
        error = play(stage, openenv, retries=0)[0].error or ""
    assert "KeyError: 'HF_TOKEN'\nhint: the server does not get these variables of this" in error
    assert "HF_TOKEN; pass those that it needs: Serve(…, environ={…})" in error
    assert "hf_abcdefgh" not in error


@pytest.mark.parametrize("width", [100, 30_000])
def test_only_the_end_of_a_log_is_read_and_no_secret_is_cut(
    stage: Stage, folder: Path, width: int
) -> None:
    secret = "s" * 50 + "e" * width
    (folder / "apps.py").write_text(
        "import os, sys; sys.stdout.truncate(2**40); sys.stdout.seek(0, 2)\n"
        "print('\\n', os.environ['TOKEN'], 'behind'); sys.exit(3)"
    )
    with OpenEnv(Serve("apps:app", cwd=folder, environ={"TOKEN": secret})) as openenv:
        error = play(stage, openenv, retries=0)[0].error or ""
    assert "exited with code 3" in error
    assert "<TOKEN> behind" in error
    assert "eee" not in error


def test_replicas_are_processes_of_their_own(stage: Stage, folder: Path) -> None:
    with OpenEnv(Serve("apps:pid", cwd=folder, replicas=3), max_sessions=1) as openenv:
        assert len({first(rollout) for rollout in play(stage, openenv, 12)}) == 3


def test_an_app_that_cannot_start_is_named_with_its_log(stage: Stage, folder: Path) -> None:
    with OpenEnv(Serve("nothing:app", cwd=folder, start_timeout_s=3600)) as openenv:
        (rollout,) = play(stage, openenv, retries=0)
    lines = (rollout.error or "").splitlines()
    assert lines[0] == "EnvError: serve:nothing:app exited with code 1; the end of its log:"
    assert lines[1] == "  starting"
    assert "  ModuleNotFoundError: No module named 'nothing'" in lines


def test_an_environment_that_cannot_be_made_here_is_named_with_the_log(
    stage: Stage, folder: Path
) -> None:
    with OpenEnv(Serve("apps:broken", cwd=folder, start_timeout_s=3600)) as openenv:
        (rollout,) = play(stage, openenv, retries=0)
    said, then, *log = (rollout.error or "").splitlines()
    assert said.endswith(
        " could not create an environment, FACTORY_ERROR: Failed to create environment"
    )
    assert then == "the end of the server's log:"
    assert "  starting" in log


def test_an_app_that_never_answers_is_named_and_ended(stage: Stage, folder: Path) -> None:
    (folder / "apps.py").write_text(
        "import os, time; print(os.getpid(), flush=True); time.sleep(999)"
    )
    with OpenEnv(Serve("apps:app", cwd=folder, start_timeout_s=LIMIT_S)) as openenv:
        (rollout,) = play(stage, openenv, retries=0)
        lines = (rollout.error or "").splitlines()
        assert lines[0] == (
            "EnvError: serve:apps:app did not answer within start_timeout_s=6; the end of its log:"
        )
        assert gone(int(lines[2]))


def test_a_python_that_is_not_there_is_named(stage: Stage) -> None:
    with OpenEnv(Serve("a:b", python="/no/python")) as openenv:
        assert play(stage, openenv, retries=0)[0].error == (
            "EnvError: serve:a:b cannot be started: [Errno 2] No such file or directory: "
            "'/no/python'"
        )


def test_a_start_that_fails_leaves_no_log_open() -> None:
    (host,) = servers_of(Serve("a:b", python="/no/python"))
    for _ in range(2):
        with pytest.raises(EnvError, match="cannot be started"):
            asyncio.run(host.url())
        assert isinstance(host, ServerProcess)
        assert host._log is None


def test_a_server_that_died_is_started_again(
    stage: Stage, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with OpenEnv(Serve("apps:plain", cwd=folder)) as openenv:
        (rollout,) = play(stage, openenv, says="die", retries=1)
        assert rollout.failed
        assert "closed the socket without a word before it answered step" in (rollout.error or "")
        assert_done(play(stage, openenv)[0])
    told = [message for message in caplog.messages if message.startswith("serve:")]
    assert told[0] == (
        "serve:apps:plain exited with code 3; the end of its log:\n"
        "  starting\n  a last word; restarting the server"
    )


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_a_server_ends_with_its_parent_however_that_ends(folder: Path) -> None:
    code = f"""
import asyncio, os, signal
from abut.openenv import OpenEnv, Serve
from abut.envs.task import RolloutTask
openenv = OpenEnv(Serve("apps:pid", cwd={str(folder)!r}))
async def main():
    episode = await openenv.lend(RolloutTask(0, "r", openenv, [], "", 0))
    print((await episode.reset(""))[1].split()[0], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert eventually(lambda: gone(int(done.stdout)))


def test_servers_end_at_exit_without_a_close(folder: Path) -> None:
    code = f"""
import asyncio
from abut.openenv import OpenEnv, Serve
from abut.envs.task import RolloutTask
openenv = OpenEnv(Serve("apps:pid", cwd={str(folder)!r}))
async def main():
    episode = await openenv.lend(RolloutTask(0, "r", openenv, [], "", 0))
    print((await episode.reset(""))[1].split()[0], flush=True)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert gone(int(done.stdout))


# ---- docker


def test_an_image_is_run_and_removed(stage: Stage, folder: Path) -> None:
    image = Docker("plain", environ={"KEY": "v"}, options=["--memory", "1g"])
    with OpenEnv(image) as openenv:
        assert_done(play(stage, openenv)[0])
    run, remove = (folder / "docker.log").read_text().splitlines()
    words = run.split()
    name = words[words.index("--name") + 1]
    port = words[words.index("--publish") + 1].split(":")[1]
    assert run == (
        f"run --rm --name {name} --publish 127.0.0.1:{port}:8000 --env KEY --memory 1g plain"
    )
    assert remove == f"rm --force {name}"


def test_an_image_that_is_not_there_is_named(stage: Stage, folder: Path) -> None:
    with OpenEnv("docker:nothing") as openenv:
        assert play(stage, openenv, retries=0)[0].error == (
            "EnvError: docker:nothing exited with code 1; the end of its log:\n"
            "  Unable to find image 'nothing'"
        )


def test_without_docker_it_is_named(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with OpenEnv("docker:image") as openenv:
        assert play(stage, openenv, retries=0)[0].error == (
            "EnvError: docker:image cannot be started: [Errno 2] No such file or directory: "
            "'docker'"
        )


def test_the_error_of_a_start_is_that_of_all_who_wait(stage: Stage, folder: Path) -> None:
    with OpenEnv("docker:nothing") as openenv:
        rollouts = play(stage, openenv, 8, retries=0)
        assert {type(r.error) for r in rollouts} == {str}
    runs = (folder / "docker.log").read_text().count("run --rm")
    assert runs < 4


def test_a_closed_server_is_not_started(folder: Path) -> None:
    (host,) = servers_of(Serve("apps:plain", cwd=folder))
    host.end()
    with pytest.raises(EnvError) as raised:
        asyncio.run(host.url())
    assert str(raised.value) == "serve:apps:plain is closed"
