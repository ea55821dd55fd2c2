"""`abut view --watch`: what its server answers, whom it refuses, and what new records it sees."""

import gzip
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

import abut
from abut.cli.__main__ import main
from abut.demo.model import ASSETS as DEMO
from abut.records.recorder import JsonlRecorder, ParquetRecorder
from abut.records.scores import score_record
from abut.records.tail import rows_at
from abut.records.viewer.catalog import Catalog
from abut.records.viewer.watch import Watch
from tests.kit.data.records import a_played_rollout, a_rollout

TOKENIZER = abut.Tokenizer.from_file(DEMO / "tokenizer.json")
TALK = ("Say something", [("Yes, and this is it", "And then?"), ("Done", None)])
Answer = tuple[http.client.HTTPResponse, bytes]


class Browser:
    """Asks a watch as its page does, and keeps the list as the page does."""

    def __init__(self, watch: Watch) -> None:
        self.url = urlsplit(watch.url)
        self.epoch = self.batches = 0
        self.version = -1
        self.rows: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {}

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.url.port, timeout=60)
        try:
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            return response, response.read()
        finally:
            connection.close()

    def blocks(self, what: str, **query: Any) -> list[tuple[Any, bytes]]:
        response, body = self.ask(f"{self.url.path}{what}?{urlencode(query)}")
        assert response.status == 200, body
        found = []
        while body:
            end = 4 + int.from_bytes(body[:4], "little")
            raw = gzip.decompress(body[4:end])
            found.append(
                (json.loads(raw[4 : (at := 4 + int.from_bytes(raw[:4], "little"))]), raw[at:])
            )
            body = body[end:]
        return found

    def step(self) -> None:
        """Take one answer to what is new; the server answers once there is something."""
        known = {"epoch": self.epoch, "after": self.batches, "version": self.version}
        (self.facts, _), *batches = self.blocks("changes", **known)
        self.version = self.facts["version"]
        if self.facts["epoch"] != self.epoch:
            self.epoch, self.batches, self.rows = self.facts["epoch"], 0, []
        self.batches += len(batches)
        for batch, _ in batches:
            columns = batch.get("rollouts") or batch["scored"]
            rows = [
                dict(zip(columns, values, strict=True))
                for values in zip(*columns.values(), strict=True)
            ]
            if "rollouts" in batch:
                self.rows += rows
            else:
                for row in rows:
                    self.rows[row.pop("index")] |= row

    def wait(self, count: int) -> list[str]:
        """Return the ids of the list once it has so many rows."""
        while len(self.rows) != count or self.facts["share"] < 1:
            self.step()
        return [row["rollout_id"] for row in self.rows]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Any]:
    """Watches a path below the folder of the test."""
    watches = []

    def watch(path: str = "runs", **options: Any) -> Browser:
        catalog = Catalog([tmp_path / path], **options)
        watches.append(Watch(catalog, path, look_s=0.01))
        return Browser(watches[-1])

    yield watch
    for one in watches:
        one.close()


def play(rollout_id: str, **changes: Any) -> Any:
    return a_played_rollout(TOKENIZER, *TALK, rollout_id, **changes)


# ---- whom it answers


def test_the_page_is_served_with_a_policy_and_is_not_kept(watched: Any) -> None:
    browser = watched()
    response, body = browser.ask(browser.url.path)
    assert response.status == 200
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Referrer-Policy"] == "no-referrer"
    policy = response.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "; connect-src 'self'; " in policy
    assert policy.endswith("; frame-ancestors 'none'")
    assert "unsafe" not in policy
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy.rpartition("; ")[0]}">'
    assert meta in body.decode()
    assert "fetch(" in body.decode()


def test_without_the_token_there_is_nothing(watched: Any) -> None:
    browser = watched()
    token = browser.url.path.strip("/")
    assert len(token) >= 32
    for path in (
        *("/", "/x/", f"/{token}", f"/{token[:-1]}/", f"/{token}x/", f"/{token.swapcase()}/"),
        *("/changes?epoch=0&after=0&version=-1", f"/?{token}", "/%C3%A9/", "//[/"),
    ):
        response, body = browser.ask(path)
        assert response.status == 404, path
        assert body == b"Not Found\n"
    assert browser.ask(browser.url.path)[0].status == 200


def test_nothing_else_is_served(watched: Any, tmp_path: Path) -> None:
    JsonlRecorder(tmp_path / "runs" / "first.jsonl").write(play("r0"))
    browser = watched()
    browser.wait(1)
    root = browser.url.path
    for path in (
        *("first.jsonl", "../first.jsonl", "index.html", "..%2f..", "page.js", "rollout/", "?x=1"),
        str(tmp_path / "runs" / "first.jsonl"),
    ):
        assert browser.ask(root + path)[0].status == 404, path
    for query, status in {
        "rollout?epoch=1&index=1": 410,
        "rollout?epoch=2&index=0": 410,
        "rollout?epoch=1&index=-1": 410,
        "rollout?epoch=1&index=x": 400,
        "rollout?epoch=1": 400,
        "changes?epoch=²&after=0&version=0": 400,
        "search?epoch=1&first=0&last=1&where=rewrd": 503,
    }.items():
        assert browser.ask(root + query.replace("²", "%C2%B2"))[0].status == status, query


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_other_methods_are_refused(method: str, watched: Any) -> None:
    browser = watched()
    response, body = browser.ask(browser.url.path, method)
    assert (response.status, response.headers["Allow"]) == (405, "GET")
    assert body == (b"" if method == "HEAD" else b"Method Not Allowed\n")
    assert browser.ask(browser.url.path, "BREW")[0].status == 501


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "127.0.0.1"}, 200),
        ({"Host": "localhost:8100"}, 200),
        ({"Host": "LOCALHOST"}, 200),
        ({"Host": "[::1]:80"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "evil.example:127.0.0.1"}, 403),
        ({"Host": "127.0.0.1@evil.example"}, 403),
        ({"Host": "0.0.0.0"}, 403),
        ({"Host": ""}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 403),
    ],
)
def test_a_request_of_another_site_is_refused(
    headers: dict[str, str], status: int, watched: Any
) -> None:
    """A host name that somebody lets resolve to 127.0.0.1 gives his page no way in."""
    browser = watched()
    assert browser.ask(browser.url.path, **headers)[0].status == status


def test_two_hosts_or_none_are_refused(watched: Any) -> None:
    browser = watched()
    for hosts in "", "Host: 127.0.0.1\r\nHost: evil.example\r\n":
        with socket.create_connection(("127.0.0.1", browser.url.port), timeout=60) as connection:
            connection.sendall(f"GET {browser.url.path} HTTP/1.1\r\n{hosts}\r\n".encode())
            assert connection.recv(64).startswith(b"HTTP/1.1 403 ")


def test_it_listens_on_this_machine_alone(watched: Any) -> None:
    browser = watched()
    assert browser.url.hostname == "127.0.0.1"
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for address in others - {"127.0.0.1"}:
        with pytest.raises(OSError, match=r"."):
            socket.create_connection((address, browser.url.port), timeout=5)


# ---- what it sees


def test_rollouts_are_listed_as_they_are_written(watched: Any, tmp_path: Path) -> None:
    recorder = JsonlRecorder(tmp_path / "runs" / "first.jsonl")
    recorder.write(play("r0"), step=0)
    browser = watched()
    assert browser.wait(1) == ["r0"]
    recorder.write(play("r1"), step=1)
    assert browser.wait(2) == ["r0", "r1"]
    assert browser.epoch == 1
    assert browser.facts["sources"] == ["first"]
    assert [row["step"] for row in browser.rows] == [0, 1]


def test_only_what_is_new_is_read(
    watched: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []
    from abut.records import tail

    real = tail.parse_line
    monkeypatch.setattr(
        tail, "parse_line", lambda line, where: parsed.append(where) or real(line, where)
    )
    recorder = JsonlRecorder(tmp_path / "runs" / "first.jsonl")
    browser = watched()
    for k in range(5):
        recorder.write(play(f"r{k}"))
        browser.wait(k + 1)
    assert [where.rpartition(":")[2] for where in parsed] == ["1", "2", "3", "4", "5"]


def test_a_line_that_is_half_written_is_waited_for(watched: Any, tmp_path: Path) -> None:
    path = tmp_path / "runs" / "first.jsonl"
    recorder = JsonlRecorder(path)
    recorder.write(play("r0"))
    recorder.write(play("r1"))
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    path.write_bytes(whole[: first + 100])
    browser = watched()
    assert browser.wait(1) == ["r0"]
    assert browser.facts["troubles"] == []
    with path.open("ab") as file:
        file.write(whole[first + 100 :])
    assert browser.wait(2) == ["r0", "r1"]
    # A recorder cuts off the half line of a process that was killed, and goes on.
    with path.open("ab") as file:
        file.write(whole[:50])
    recorder.write(play("r2"))
    assert browser.wait(3) == ["r0", "r1", "r2"]
    assert browser.epoch == 1


def test_scores_that_come_later_are_joined(watched: Any, tmp_path: Path) -> None:
    recorder = JsonlRecorder(tmp_path / "runs" / "first.jsonl")
    scores = [score_record("run", f"r{k}", {"f": k / 4}, total=k / 2) for k in range(3)]
    recorder.write(play("r0", reward=0.125))
    browser = watched()
    browser.wait(1)
    assert (browser.rows[0]["total"], browser.rows[0]["rewards"]) == (0.125, {})
    # Those of another rank may be there before their rollout is.
    recorder.write_scores(scores)
    while browser.rows[0]["rewards"] != {"f": 0.0}:
        browser.step()
    for k in 1, 2:
        recorder.write(play(f"r{k}"))
    browser.wait(3)
    while not all(row["rewards"] for row in browser.rows):
        browser.step()
    assert [row["rewards"] for row in browser.rows] == [{"f": 0.0}, {"f": 0.25}, {"f": 0.5}]
    found = browser.blocks("search", epoch=1, first=0, last=3, where="rewards.f>0 text:Done")
    assert found[0][0] == {"found": [1, 2]}


@pytest.mark.skipif(sys.platform == "win32", reason="descriptors there are not small numbers")
def test_a_process_with_many_open_files_can_search(watched: Any, tmp_path: Path) -> None:
    import resource

    most, hardest = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hardest != resource.RLIM_INFINITY and hardest < 2048:
        pytest.skip("this system allows no descriptor above 1023")
    JsonlRecorder(tmp_path / "runs" / "first.jsonl").write(play("r0"))
    browser = watched()
    browser.wait(1)
    with ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(most, 2048), hardest))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (most, hardest))
        while stack.enter_context(Path(os.devnull).open("rb")).fileno() < 1100:
            pass
        found = browser.blocks("search", epoch=1, first=0, last=1, where="text:Done")
    assert found[0][0] == {"found": [0]}


def test_a_file_that_is_replaced_is_read_anew(watched: Any, tmp_path: Path) -> None:
    path = tmp_path / "runs" / "first.jsonl"
    JsonlRecorder(path).write(play("r0"))
    JsonlRecorder(tmp_path / "runs" / "second.jsonl").write(play("s0"))
    browser = watched()
    assert browser.wait(2) == ["r0", "s0"]
    other = JsonlRecorder(tmp_path / "other.jsonl")
    for k in range(3):
        other.write(play(f"n{k}"))
    os.replace(other.path, path)
    while browser.epoch == 1:
        browser.step()
    assert browser.wait(4) == ["n0", "n1", "n2", "s0"]
    assert browser.ask(f"{browser.url.path}rollout?epoch=1&index=0")[0].status == 410
    path.write_bytes(path.read_bytes()[-1:])  # shorter, and the same file
    epoch = browser.epoch
    while browser.epoch == epoch:
        browser.step()
    path.unlink()
    assert browser.wait(1) == ["s0"]


def test_a_file_that_begins_otherwise_is_another_one(watched: Any, tmp_path: Path) -> None:
    path = tmp_path / "runs" / "first.jsonl"
    JsonlRecorder(path).write(play("r0"))
    browser = watched()
    browser.wait(1)
    second = JsonlRecorder(tmp_path / "second.jsonl")
    for name in "s0", "s1":
        second.write(play(name))
    path.write_bytes(second.path.read_bytes())  # the same inode, and longer
    while browser.epoch == 1:
        browser.step()
    assert browser.wait(2) == ["s0", "s1"]


def test_a_new_run_is_picked_up(watched: Any, tmp_path: Path) -> None:
    browser = watched()
    browser.step()
    assert browser.facts["sources"] == []  # the folder itself comes later
    JsonlRecorder(tmp_path / "runs" / "b.jsonl").write(play("b0"))
    assert browser.wait(1) == ["b0"]
    JsonlRecorder(tmp_path / "runs" / "deep" / "a.jsonl").write(play("a0"))
    assert browser.wait(2) == ["b0", "a0"]
    assert browser.facts["sources"] == ["b", "deep/a"]
    assert [row["source"] for row in browser.rows] == [0, 1]
    assert browser.epoch == 1


def test_a_folder_of_parquet_is_followed(watched: Any, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    recorder = ParquetRecorder(tmp_path / "runs" / "first")
    browser = watched()
    for step in range(3):
        for k in range(2):
            recorder.write(play(f"r{step}-{k}", reward=k / 2), step=step, tokenizer=str(DEMO))
        recorder.flush()
        browser.wait(2 * step + 2)
    recorder.write_scores([score_record("run", f"r2-{k}", {"f": 1.0}, total=1.0) for k in (1, 0)])
    while browser.rows[5]["rewards"] != {"f": 1.0}:
        browser.step()
    found = browser.blocks("search", epoch=1, first=0, last=9, where="text:Done rewards.f:none")
    assert found[0][0] == {"found": [0, 1, 2, 3]}
    (pieces, text), (chunk, _), _ = browser.blocks("rollout", epoch=1, index=5)
    assert b"Done" in text
    assert len(chunk["rollouts"]) == 1
    assert pieces["source"] == str(DEMO)
    first = next((tmp_path / "runs" / "first").glob("00000000-*"))
    first.unlink()
    assert browser.wait(4) == ["r1-0", "r1-1", "r2-0", "r2-1"]
    assert browser.epoch == 2


def test_what_cannot_be_read_is_said_and_the_rest_is_shown(watched: Any, tmp_path: Path) -> None:
    first = JsonlRecorder(tmp_path / "runs" / "first.jsonl")
    first.write(play("r0"))
    with first.path.open("ab") as file:
        file.write(b"no record\n")
    JsonlRecorder(tmp_path / "runs" / "second.jsonl").write(play("s0"))
    browser = watched()
    assert browser.wait(2) == ["r0", "s0"]
    (trouble,) = browser.facts["troubles"]
    assert trouble.startswith(f"{first.path}:2: not a record of a rollout")


# ---- a rollout, and the search


def test_a_rollout_comes_with_a_table_of_its_own_tokens(watched: Any, tmp_path: Path) -> None:
    recorder = JsonlRecorder(tmp_path / "runs" / "first.jsonl")
    for name in "r0", "r1":
        recorder.write(play(name), tokenizer=str(DEMO), columns={"answer": "secret"})
    browser = watched(without=["columns"])
    browser.wait(2)
    (pieces, texts), (chunk, columns), (pictures, _) = browser.blocks("rollout", epoch=1, index=1)
    (rollout,) = chunk["rollouts"]
    (record,) = rows_at([browser_location(tmp_path, 1)])
    ids = [*record["prompt_ids"], *record["completion_ids"]]
    assert [pieces["ids"][number] for number in columns[: len(ids)]] == ids
    assert rollout["tokens"] == len(ids)
    assert texts.startswith(TOKENIZER.decode_bytes(ids[:1]))
    assert (rollout["columns"], pictures) == (None, {})


def browser_location(folder: Path, number: int) -> Any:
    from abut.records.tail import JsonlTail

    return [at for at, _ in JsonlTail(folder / "runs" / "first.jsonl").rows()][number]


def test_a_search_that_nobody_waits_for_ends(tmp_path: Path) -> None:
    recorder = JsonlRecorder(tmp_path / "first.jsonl")
    for k in range(3):
        recorder.write(a_rollout(f"r{k}"))
    catalog = Catalog([recorder.path])
    catalog.look()
    assert catalog.search(1, 0, 3, "text:hi", lambda: True) == [0, 1, 2]
    assert catalog.search(1, 0, 3, "text:hi", lambda: False) == []
    with pytest.raises(LookupError):
        catalog.search(2, 0, 3, "text:hi", lambda: True)


def test_waiting_pages_do_not_hold_up_the_end(watched: Any, tmp_path: Path) -> None:
    catalog = Catalog([tmp_path / "runs"])
    watch = Watch(catalog, "runs", look_s=0.01)
    browser = Browser(watch)
    browser.step()
    news = f"{browser.url.path}changes?epoch=1&after=0&version={browser.version}"

    def wait() -> None:
        with suppress(OSError):  # where the server ended before it was asked
            browser.ask(news)

    waits = threading.Thread(target=wait)
    waits.start()
    watch.close()
    waits.join(10)
    assert not waits.is_alive()
    with pytest.raises(OSError, match="refused"):
        browser.ask("/")


# ---- the command


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_stopped(stop: signal.Signals, tmp_path: Path) -> None:
    JsonlRecorder(tmp_path / "runs" / "first.jsonl").write(play("r0"))
    command = [sys.executable, "-m", "abut.cli", "view", "runs", "--watch", "--no-open"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [*command, "--where", "step:1 text:a"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        url = urlsplit(process.stdout.readline().strip())
        assert re.fullmatch(r"/[\w-]{32}/", url.path)
        assert url.fragment == "w=step%3A1%20text%3Aa"
        connection = http.client.HTTPConnection("127.0.0.1", url.port or 0, timeout=60)
        connection.request("GET", url.path)
        assert connection.getresponse().status == 200
        connection.close()
        process.send_signal(stop)
        assert process.wait(60) == 0
        said = process.stderr.read()
    assert said == "abut view: serving the page on this machine; press Ctrl-C to stop\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--watch", "-o", "x.html"], "--output names a file, but --watch serves the page"),
        (["--port", "8100"], "--port needs --watch"),
        (["--watch", "--where", "rewrd<1"], "records do not have 'rewrd'"),
        (["--watch", "--without", "env_mask"], "a page needs the field 'env_mask'"),
        (["--watch", "--without", "colums"], "records do not have a field 'colums'"),
        (["--watch", "--tokenizer", "/nowhere/at-all"], "/nowhere/at-all"),
    ],
)
def test_what_cannot_be_watched_is_an_error_at_once(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["view", str(tmp_path), "--no-open", *options]) == 1
    assert said in capsys.readouterr().err
