"""What a server is told and nobody else: tokens, passwords, variables."""

import logging
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from abut.envs.task import RolloutTask
from abut.openenv import Docker, OpenEnv, Serve
from abut.openenv.target import servers_of
from abut.rollout.rollout import Rollout
from tests.kit.servers.wire_server import WireServer
from tests.kit.stage.rollouts import Recording, Stage, assert_done

pytestmark = pytest.mark.usefixtures("no_thread_stays")

SECRET = "s3cr3t-t0ken"
TOKEN = {"Authorization": f"Bearer {SECRET}"}
BASIC = "Basic bWU6czNjcjN0LXQwa2Vu"


def play(stage: Stage, openenv: OpenEnv) -> Rollout:
    engine = stage.engine(Recording(stage.says("yes")), max_failed_frac=1, retries=0)
    (rollout,) = engine.run([RolloutTask(0, "r0", openenv, [], "seed", 0)])
    return rollout


def logged(caplog: pytest.LogCaptureFixture) -> str:
    """What was logged here, but for the server of the test."""
    return str([each.getMessage() for each in caplog.records if each.name != "websockets.server"])


# ---- redirects


@pytest.mark.parametrize(("path", "scheme"), [("/ws", "http"), ("/ws", "ws"), ("/schema", "http")])
def test_a_token_does_not_follow_a_redirect_to_another_origin(
    stage: Stage, path: str, scheme: str
) -> None:
    with WireServer() as other:
        there = other.url.replace("http", scheme)
        server = WireServer(moved={path: there + path})
        with server, OpenEnv(server.url, headers=TOKEN) as openenv:
            error = play(stage, openenv).error
        assert [found for found, _ in server.heard].count(path) == 1, "it is not asked again"
    assert other.heard == []
    assert error == (
        f"EnvError: {server.url} redirects to another origin, {other.url}; abut does not "
        f"follow, so that your headers stay with {server.url}\nhint: if the server "
        f"has moved, use {other.url} as its address"
    )


def test_a_redirect_within_an_origin_is_followed_with_the_token(stage: Stage) -> None:
    moved = {"/ws": "/new/ws", "/schema": "/new/schema"}
    with WireServer(moved=moved) as server, OpenEnv(server.url, headers=TOKEN) as openenv:
        assert_done(play(stage, openenv))
    assert [path for path, _ in server.heard] == ["/ws", "/new/ws", "/schema", "/new/schema"]
    assert {headers["Authorization"] for _, headers in server.heard} == {TOKEN["Authorization"]}


def test_redirects_in_a_circle_end(stage: Stage) -> None:
    for path in ("/ws", "/schema"):
        server = WireServer(moved={path: path})
        with server, OpenEnv(server.url, connect_timeout_s=1) as openenv:
            assert play(stage, openenv).failed


def test_a_schema_is_read_up_to_a_limit(stage: Stage) -> None:
    server = WireServer(schema={"x": "y" * 1000})
    with server, OpenEnv(server.url, max_message_bytes=500) as openenv:
        assert play(stage, openenv).error == (
            f"EnvError: {server.url}/schema does not describe the environment, OSError: the "
            "answer is longer than max_message_bytes=500\nhint: pass observe= and act="
        )


# ---- user:password@


def with_password(url: str) -> str:
    return url.replace("://", f"://me:{SECRET}@")


def test_user_and_password_are_sent_and_never_printed(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with WireServer() as server, OpenEnv(with_password(server.url)) as openenv:
        assert_done(play(stage, openenv))
        assert {path for path, _ in server.heard} == {"/ws", "/schema"}
        assert {headers["Authorization"] for _, headers in server.heard} == {BASIC}
        server.drop_all()
    with OpenEnv(with_password(server.url), connect_timeout_s=0) as openenv:
        rollout = play(stage, openenv)
        assert f"{server.url} cannot be reached" in (rollout.error or "")
        assert SECRET not in f"{rollout!r}{openenv!r}{servers_of(with_password(server.url))!r}"
    assert "rollouts failed" in logged(caplog)
    assert SECRET not in logged(caplog)
    assert BASIC not in logged(caplog)


def test_a_token_is_in_no_log(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with WireServer() as server, OpenEnv(server.url, headers=TOKEN) as openenv:
        assert_done(play(stage, openenv))
    assert SECRET not in logged(caplog)


def test_two_authorizations_are_refused() -> None:
    with pytest.raises(ValueError, match="Authorization") as raised:
        OpenEnv(with_password("http://a"), headers={"authorization": SECRET})
    assert str(raised.value) == (
        "OpenEnv: http://a has user:password@, and you also pass an Authorization header\n"
        "hint: pass one of the two"
    )


@pytest.mark.parametrize("target", ["ftp://me:{}@host", "me:{}@host:80", "http://me:{}@host:p"])
def test_a_wrong_target_is_named_without_its_password(target: str) -> None:
    with pytest.raises(ValueError, match=r"must be http|starts with http") as raised:
        OpenEnv(target.format(SECRET))
    assert SECRET not in str(raised.value)


# ---- variables


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in that notes what it is called with, says what it was told, and fails."""
    script = tmp_path / "docker"
    script.write_text(
        f"#!{sys.executable}\nimport os, pathlib, sys\n"
        f"log = pathlib.Path({str(tmp_path / 'log')!r})\n"
        "if sys.argv[1] == 'run':\n"
        "    log.write_text(' '.join(sys.argv) + chr(10) + os.environ['TOKEN'])\n"
        "    sys.exit('TOKEN is ' + os.environ['TOKEN'])\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "log"


def test_variables_of_a_container_stand_on_no_command_line(stage: Stage, docker: Path) -> None:
    secret = f"{SECRET}\nof two lines"
    image = Docker("image", environ={"TOKEN": secret})
    assert SECRET not in repr(image)
    with OpenEnv(image) as openenv:
        play(stage, openenv)
    command, _, told = docker.read_text().partition("\n")
    assert "--env TOKEN image" in command
    assert SECRET not in command
    assert told == secret


def test_variables_that_a_server_prints_are_not_repeated(stage: Stage, docker: Path) -> None:
    with OpenEnv(Docker("image", environ={"TOKEN": SECRET})) as openenv:
        assert play(stage, openenv).error == (
            "EnvError: docker:image exited with code 1; the end of its log:\n  TOKEN is <TOKEN>"
        )


def test_variables_of_a_served_app_are_not_in_its_repr() -> None:
    assert SECRET not in repr(Serve("a:b", environ={"TOKEN": SECRET}))


@pytest.mark.parametrize(
    "options",
    [
        ["-e", f"TOKEN={SECRET}"],
        ["--env", f"TOKEN={SECRET}"],
        [f"--env=TOKEN={SECRET}"],
        [f"-eTOKEN={SECRET}"],
        ["--rm", "-ite", f"TOKEN={SECRET}\n"],
    ],
)
def test_variables_among_the_options_are_refused(options: list[str]) -> None:
    with pytest.raises(ValueError, match="command line") as raised:
        Docker("image", options=options)
    assert SECRET not in str(raised.value)


def test_other_options_are_taken() -> None:
    Docker(
        "image", options=["-e", "TOKEN", "--env-file=a", "--env=B", "--memory=1g", "-it", "-h=x"]
    )


@pytest.mark.parametrize("image", ["--privileged", "-v/:/host", "", " image", "a b"])
def test_an_image_is_no_option(image: str) -> None:
    with pytest.raises(ValueError, match="must be the name of an image"):
        OpenEnv(f"docker:{image}")
    with pytest.raises(ValueError, match="must be the name of an image"):
        Docker(image)


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"A=b": "c"}, "Docker.environ: 'A' is not the name of a variable"),
        ({"": "c"}, "Docker.environ: '' is not the name of a variable"),
        ({"A": 1}, "Docker.environ['A']: must be a string"),
        ({"PATH": "c"}, "Docker.environ['PATH']: the docker command itself reads this variable"),
        ({"DOCKER_HOST": "c"}, "Docker.environ['DOCKER_HOST']: the docker command itself reads"),
    ],
)
def test_variables_that_cannot_be_given_are_named(environ: Any, text: str) -> None:
    with pytest.raises(ValueError, match="environ") as raised:
        Docker("image", environ=environ)
    assert str(raised.value).startswith(text)
