"""The row `gateway` compares the prompts and bytes of all sides before their times."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from benchmarks.figures import ResultsDiffer, Row
from benchmarks.rows import gateway
from benchmarks.scale import Scale
from benchmarks.texts import Replies
from benchmarks.workbench import Workbench

pytest.importorskip("aiohttp")
pytest.importorskip("tokenizers")
pytest.importorskip("transformers")


class Answering:
    """A server whose first answer takes ten seconds of CPU time, and each later one a second."""

    url = "http://there/v1"

    def __init__(self, ids: list[int], digest: str | None = None) -> None:
        self.ids, self.digest = ids, digest
        self.bodies: list[bytes] = []

    def post(self, content: bytes, address: str, key: str = "") -> tuple[Any, dict[str, str]]:
        self.bodies.append(content)
        message = {"role": "assistant", "content": "", "tool_calls": [{"id": "a"}]}
        said = {"choices": [{"message": message}], "usage": {"total_tokens": 7}}
        return said, {} if self.digest is None else {gateway.DIGEST: self.digest or of(content)}

    def clock(self) -> float:
        return len(self.bodies) + 9.0 * bool(self.bodies)

    def prompts(self) -> list[list[int]]:
        return [self.ids for _ in self.bodies]


def of(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def asked(*, rendered: list[int], digest: str = "") -> tuple[dict[str, float], dict[str, Any]]:
    servers: dict[str, Any] = {
        gateway.ABUT: Answering([1, 2]),
        gateway.PASSES: Answering([], digest),
        gateway.PARSES: Answering([]),
        gateway.ENCODES: Answering([]),
        gateway.RENDERS: Answering(rendered),
    }
    talks = [gateway.Talk(servers[gateway.ABUT], "http://there/v1", "key") for _ in range(3)]
    for talk in talks:
        talk.ask(talk.body())
    servers[gateway.ABUT].bodies.clear()
    new = Replies(1, 300, pool_bytes=20_000)
    return gateway._asked_all(servers, talks, new), servers


def test_all_sides_get_the_same_bytes_and_the_first_call_is_not_counted() -> None:
    seconds, servers = asked(rendered=[1, 2])
    assert seconds == dict.fromkeys(gateway.SIDES, 1.0) | {gateway.FIRST: 10.0}
    bodies = [server.bodies for server in servers.values()]
    assert bodies[1:] == bodies[:1] * (len(bodies) - 1)
    assert len(set(bodies[0])) == 3


def test_another_prompt_or_other_bytes_fail_the_row() -> None:
    with pytest.raises(ResultsDiffer, match=r"prompt of 2 tokens: abut and .* differ"):
        asked(rendered=[1, 3])
    with pytest.raises(ResultsDiffer, match="the forwarded bytes differ from the bytes sent"):
        asked(rendered=[1, 2], digest="other")


def test_what_is_required_is_a_time_and_a_growth() -> None:
    row = Row("gateway", "answer")
    for length, ours, parsed in ((1_000, 1.0, 0.5), (30_000, 2.0, 1.0), (120_000, 5.0, 3.0)):
        row.add(gateway.case(length), {gateway.ABUT: [ours], gateway.PARSES: [parsed]})
    gateway._require(row, (1_000, 30_000, 120_000))
    assert {need.what: (need.value, need.bound) for need in row.needs} == {
        "abut, after 30,000 tokens": (2.0, 1e-3),
        f"growth from 1,000 to 120,000 tokens: abut ÷ {gateway.PARSES}": (1.6, 1.5),
    }


@pytest.mark.slow
def test_every_server_answers_and_understands_the_same(qwen3: Any) -> None:
    workbench = Workbench(Path(qwen3.name_or_path), Scale.quick(), {})
    row = gateway.measure(workbench)
    cases = [gateway.case(length) for length in workbench.scale.gateway_lengths]
    sides = [(case, side) for case in cases for side in (*gateway.SIDES, gateway.FIRST)]
    assert [(figure.case, figure.side) for figure in row.figures] == sides
    rounds = workbench.scale.gateway_sets * workbench.scale.gateway_rounds
    assert {len(figure.values) for figure in row.figures} == {rounds}
