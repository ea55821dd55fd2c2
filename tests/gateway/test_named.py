"""Names and sessions: who asks is kept apart, whatever is said, and rewards find their rows."""

import asyncio
import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from abut import AgentResult, Endpoint, agent
from abut.gateway.server.gateway import Gateway
from tests.kit.clients.conversation import Heard
from tests.kit.clients.raw_http import RawClient
from tests.kit.stage.agents import (
    LOOKUP,
    Client,
    ask,
    check_tree,
    play_agents,
    post,
    says,
    serving,
    user,
)
from tests.kit.stage.rollouts import Stage

CHAT = "/v1/chat/completions"
BODY = {"model": "policy", "messages": [user("hi")]}
Play = Callable[..., Heard]


@pytest.fixture
def play(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Play an agent; its rows then hold what was sampled, each token once."""

    def play(agent: Any, *said: str, **options: Any) -> Heard:
        heard = Heard(stage, monkeypatch, agent, said or ("yes",) * 9, **options)
        check_tree(heard.rollout, heard.sampled)
        return heard

    return play


def conversations(heard: Heard) -> list[tuple[str | None, int, bool]]:
    """Name, sampled turns and whether it is trained, of the row and each branch."""
    rollout = heard.rollout
    return [
        (one.name, len(one.turns), one.trained) for one in (rollout.main_row, *rollout.branches)
    ]


def client_of(endpoint: Endpoint) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)


async def two_turns(endpoint: Endpoint, text: str = "hi") -> None:
    """Ask twice, the same of everybody."""
    async with client_of(endpoint) as client:
        messages: list[Any] = [user(text)]
        for _ in range(2):
            reply = await client.chat.completions.create(model="m", messages=messages)
            messages += [{"role": "assistant", "content": reply.choices[0].message.content}]
            messages += [user("go on")]


# ---- names


@agent
async def two_players(endpoint: Endpoint) -> AgentResult:
    """Two players with equal histories, turn by turn, and a judge that reads the same."""
    white, black = endpoint.named("white"), endpoint.named("black")
    await asyncio.gather(two_turns(white), two_turns(black), two_turns(endpoint))
    await two_turns(endpoint.named("judge", train=False))
    return AgentResult(0.5, rewards={"white": 1.0, "black": -1.0})


def test_calls_with_different_names_are_never_one_conversation(play: Play) -> None:
    heard = play(two_players)
    rollout = heard.rollout
    found = sorted(conversations(heard), key=str)
    assert found == [
        *[("black", 2, True), ("judge", 2, False), ("white", 2, True), (None, 2, True)]
    ]
    assert rollout.name != "judge"
    own = {branch.name: branch.reward for branch in (rollout.main_row, *rollout.branches)}
    assert own == {"white": 1.0, "black": -1.0, "judge": None, None: None}
    assert {branch.cause for branch in rollout.branches} == {"new"}
    assert rollout.reward == 0.5


def test_a_history_that_another_name_has_said_is_rendered_anew(play: Play) -> None:
    @agent
    async def hands_on(endpoint: Endpoint) -> float:
        async with Client(endpoint.named("first")) as first, Client(endpoint) as second:
            answer = await first.ask([user("a")])
            await second.ask([user("a"), answer, user("b")])
        return 1.0

    heard = play(hands_on, "one", "a longer two")
    assert conversations(heard) == [(None, 1, True), ("first", 1, True)]


def test_the_header_names_a_call_where_the_address_does_not(play: Play) -> None:
    @agent
    async def by_header(endpoint: Endpoint) -> float:
        async with Client(endpoint) as plain, Client(endpoint.named("address")) as named:
            await plain.post(BODY, **{"x-abut-name": "header"})
            await named.post(BODY, **{"x-abut-name": "header"})
        return 1.0

    heard = play(by_header)
    assert sorted(conversations(heard)) == [("address", 1, True), ("header", 1, True)]


def test_a_name_is_trained_or_is_not(play: Play) -> None:
    answers: list[tuple[int, Any]] = []

    @agent
    async def unsure(endpoint: Endpoint) -> float:
        for named in (endpoint, endpoint.named("a"), endpoint.named("a", train=False)):
            async with Client(named) as client:
                answers.append(await client.post(BODY))
        async with Client(endpoint.named("b", train=False)) as client:
            answers.append(await client.post(BODY))
        async with Client(endpoint) as client:
            answers.append(await client.post(BODY, **{"x-abut-name": "b"}))
        return 1.0

    heard = play(unsure)
    assert [status for status, _ in answers] == [200, 200, 400, 200, 400]
    for (_, body), name in ((answers[2], "a"), (answers[4], "b")):
        assert body["error"]["code"] == "wrong_name"
        assert body["error"]["message"] == (
            f"the name {name!r} is used both with train=True and with train=False\n"
            "hint: give the calls that must not be trained another name"
        )
    assert heard.rollout.error is None


def test_a_rollout_with_untrained_calls_alone_fails_and_says_so(play: Play) -> None:
    @agent
    async def judges(endpoint: Endpoint) -> float:
        await two_turns(endpoint.named("judge", train=False))
        return 1.0

    rollout = play(judges, retries=2).rollout
    assert rollout.failed
    assert rollout.attempts == 1
    assert rollout.error == (
        "EnvError: judges made all its calls with endpoint.named(…, train=False), so there is "
        "nothing to train\n"
        "hint: use train=False for judges only; the agent itself must call endpoint.base_url, or "
        "a name with train=True"
    )
    assert [branch.trained for branch in rollout.branches] == [False]


def test_a_rollout_whose_trained_calls_are_refused_says_so(play: Play) -> None:
    @agent
    async def judges_first(endpoint: Endpoint) -> float:
        await two_turns(endpoint.named("judge", train=False))
        async with Client(endpoint) as client:
            assert (await client.post(BODY))[0] == 400
        return 1.0

    rollout = play(judges_first, retries=0, max_calls=2).rollout
    assert rollout.error is not None
    assert rollout.error.startswith(
        "EnvError: none of the calls of judges_first that would be trained was answered; the "
        "last one was refused: "
    )
    assert "max_calls" in rollout.error


def test_an_untrained_name_is_not_the_row_however_long(play: Play) -> None:
    @agent
    async def judged(endpoint: Endpoint) -> float:
        async with Client(endpoint) as client:
            await client.ask([user("hi")])
        await two_turns(endpoint.named("judge", train=False))
        return 1.0

    for branch in ("longest", "last", "random"):
        heard = play(judged, "no", "a long answer", "another long answer", branch=branch)
        assert conversations(heard) == [(None, 1, True), ("judge", 2, False)]


def test_named_calls_are_counted_with_the_others(play: Play) -> None:
    counts: list[int] = []

    @agent
    async def counts_calls(endpoint: Endpoint) -> float:
        await two_turns(endpoint)
        await two_turns(endpoint.named("a"))
        counts.extend((endpoint.calls, endpoint.named("b").calls))
        return 1.0

    play(counts_calls)
    assert counts == [4, 4]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "a\n", "x" * 65, None, 3])
def test_what_is_no_name_is_refused_at_once(name: Any) -> None:
    endpoint = Endpoint("http://localhost/r/a.0/v1", "key", "policy", "a.0")
    with pytest.raises(ValueError, match="hint: a name has 1 to 64 characters"):
        endpoint.named(name)


def test_an_address_has_one_name_in_any_process() -> None:
    endpoint = Endpoint("http://proxy/as/r/a.0/v1", "key", "policy", "a.0", lambda: 3)
    judge = endpoint.named("judge", train=False)
    assert judge.base_url == "http://proxy/as/r/a.0/as/judge/untrained/v1"
    assert (judge.name, judge.train, judge.calls) == ("judge", False, 3)
    sent = pickle.loads(pickle.dumps(judge))
    assert sent == judge
    again = sent.named("untrained")
    assert again.base_url == "http://proxy/as/r/a.0/as/untrained/v1"
    assert again.named("b").base_url == "http://proxy/as/r/a.0/as/b/v1"


# ---- sessions


def sessions_of(header: str | None) -> Any:
    @agent(session_header=header)
    async def in_sessions(endpoint: Endpoint) -> AgentResult:
        async with Client(endpoint) as client:
            for session in ("s1", "s2", "s1"):
                await client.post(BODY, **{"x-session-id": session})
        if header is None:
            return AgentResult(1.0)
        names = {"s1": "white", "s2": "black", "s3": "nobody"}
        return AgentResult(1.0, names=names, rewards={"white": 1.0, "black": -1.0, "nobody": 2.0})

    return in_sessions


def test_the_header_of_another_agent_may_say_anything(play: Play) -> None:
    """As an id of requests, which is none of an agent's sessions."""
    gateway = Gateway()
    gateway.registry.session_headers.add("x-request-id")

    @agent
    async def says_much(endpoint: Endpoint) -> float:
        async with Client(endpoint) as client:
            assert (await client.post(BODY, **{"x-request-id": "x" * 500}))[0] == 200
        return 1.0

    try:
        assert play(says_much, gateway=gateway).rollout.session is None
    finally:
        gateway.stop()


def test_calls_of_two_sessions_are_two_conversations(play: Play) -> None:
    rollout = play(sessions_of("X-Session-ID")).rollout
    rows = [rollout.main_row, *rollout.branches]
    assert sorted((row.session, row.name, row.reward) for row in rows if row) == [
        ("s1", "white", 1.0),
        ("s1", "white", 1.0),
        ("s2", "black", -1.0),
    ]
    assert sorted(branch.cause or "" for branch in rollout.branches) == ["new", "repeated"]


def test_without_a_session_header_history_alone_decides(play: Play) -> None:
    rollout = play(sessions_of(None)).rollout
    assert {branch.cause for branch in rollout.branches} == {"repeated"}
    assert {branch.session for branch in rollout.branches} == {None}


def test_an_agent_s_class_has_a_session_header_too(play: Play) -> None:
    class InSessions:
        session_header = "x-trace"

        async def run(self, endpoint: Endpoint, task: Any) -> float:
            async with Client(endpoint) as client:
                await client.post(BODY, **{"x-trace": "t1"})
            return 1.0

    assert play(InSessions()).rollout.session == "t1"


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("", "must be the name of an HTTP header"),
        ("a b", "must be the name of an HTTP header"),
        (7, "must be the name of an HTTP header"),
        ("Authorization", "this header already has another meaning"),
        ("x-api-key", "this header already has another meaning"),
        ("x-abut-name", "this header already has another meaning"),
    ],
)
def test_a_session_header_may_not_be_a_key_or_ours(header: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        agent(session_header=header)(lambda endpoint: 1.0)
    with pytest.raises(ValueError, match=said):
        Gateway(session_header=header)


# ---- rewards


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"rewards": {"typo": 1.0}}, "AgentResult.rewards has 'typo', which is not a name"),
        ({"rewards": {"a": "much"}}, "AgentResult.rewards has a value of type str: expected"),
        ({"rewards": {1: 1.0}}, "AgentResult.rewards must be a dict with strings as keys"),
        ({"rewards": [1.0]}, "AgentResult.rewards must be a dict with strings as keys"),
        ({"names": {"s": "a b"}}, "AgentResult.names has 'a b', which is not a valid name"),
        ({"names": {"s": None}}, "AgentResult.names has None, which is not a valid name"),
    ],
)
def test_a_result_with_a_wrong_key_or_value_is_an_error(play: Play, result: Any, said: str) -> None:
    @agent
    async def wrong(endpoint: Endpoint) -> AgentResult:
        await two_turns(endpoint.named("a"))
        return AgentResult(1.0, **result)

    rollout = play(wrong, retries=int("typo" in said)).rollout
    assert rollout.failed
    assert rollout.error is not None
    assert rollout.error.startswith(f"EnvError: wrong: {said}")
    assert rollout.attempts == 1, "another attempt would return the same keys"


def test_a_score_that_is_none_or_not_finite_makes_no_row(play: Play) -> None:
    @agent
    async def scores(endpoint: Endpoint) -> AgentResult:
        for name in ("a", "b", "c"):
            await two_turns(endpoint.named(name))
        return AgentResult(1.0, rewards={"a": None, "b": float("nan")})

    heard = play(scores, "long answer", "long answer", "long answer", *["no"] * 6)
    assert conversations(heard)[0] == ("c", 2, True)
    assert {name: trained for name, _, trained in conversations(heard)} == {
        **{"a": False, "b": False, "c": True}
    }
    assert heard.rollout.reward == 1.0


def test_an_answer_s_id_is_a_key_as_the_client_got_it(play: Play) -> None:
    @agent
    async def by_turn(endpoint: Endpoint) -> AgentResult:
        async with Client(endpoint) as client:
            _, body = await client.post(BODY)
            messages = [user("hi"), body["choices"][0]["message"], user("go on")]
            await client.ask(messages)
        return AgentResult(1.0, rewards={body["id"]: 0.25})

    rollout = play(by_turn, retries=1).rollout
    assert rollout.attempts == 1, "another attempt would return the same keys"
    assert rollout.error is not None
    assert "the id of an answer, but rewards of single turns need credit" in rollout.error
    rollout = play(by_turn, rewards_turns=True).rollout
    assert rollout.step_rewards == [0.25, None], "the rollout's reward is no turn's"


def test_a_reward_for_a_conversation_and_its_turn_fails_once_and_names_both(play: Play) -> None:
    @agent
    async def twice(endpoint: Endpoint) -> AgentResult:
        async with Client(endpoint.named("a")) as client:
            _, body = await client.post(BODY)
        return AgentResult(1.0, rewards={"a": 0.5, body["id"]: 0.25})

    rollout = play(twice, rewards_turns=True, retries=1).rollout
    assert rollout.failed
    assert rollout.attempts == 1, "another attempt would return the same keys"
    assert rollout.error is not None
    assert rollout.error.startswith(
        "EnvError: twice: AgentResult.rewards has a reward for the conversation 'a' and another"
    )
    assert "its answer 'chatcmpl-" in rollout.error


def test_what_was_not_measured_is_not_trained_by_the_rewards_of_its_parts(play: Play) -> None:
    @agent
    async def broke(endpoint: Endpoint) -> AgentResult:
        await two_turns(endpoint.named("a"))
        await two_turns(endpoint.named("b"))
        return AgentResult(1.0, measured=False, rewards={"a": 0.5, "b": 0.25})

    heard = play(broke)
    assert not heard.rollout.failed
    assert sorted(conversations(heard)) == [("a", 2, False), ("b", 2, False)]
    assert (heard.rollout.reward, heard.rollout.row_reward) == (None, None)


def test_settle_may_set_rewards_and_names(play: Play) -> None:
    class Settles:
        session_header = "x-session-id"

        def __init__(self, key: str) -> None:
            self.key = key

        async def run(self, endpoint: Endpoint, task: Any) -> float:
            async with Client(endpoint) as client:
                await client.post(BODY, **{"x-session-id": "s1"})
            return 1.0

        async def settle(self, played: Any, tokenizer: Any) -> None:
            for _, rollout in played:
                rollout.names, rollout.rewards = {"s1": "white"}, {self.key: 0.5}

    rollout = play(Settles("white")).rollout
    assert (rollout.name, rollout.row_reward) == ("white", 0.5)

    class Fails(Settles):
        async def run(self, endpoint: Endpoint, task: Any) -> float:
            raise ValueError("boom")

    assert play(Fails("black"), retries=0).rollout.failed, "it has not asked as anybody"
    with pytest.raises(Exception, match=r"Settles.settle: AgentResult.rewards has 'black'"):
        play(Settles("black"))

    class Pays(Settles):
        async def settle(self, played: Any, tokenizer: Any) -> None:
            await super().settle(played, tokenizer)
            for _, rollout in played:
                rollout.turns[0].reward = self.paid

        paid: Any = 0.25

    with pytest.raises(
        Exception, match=r"Pays.settle: AgentResult.rewards has a reward for the conv"
    ):
        play(Pays("white"))
    pays = Pays("white")
    pays.paid = "much"
    with pytest.raises(Exception, match=r"Pays.settle: a turn has a value of type str: expected a"):
        play(pays)
    pays.paid = float("nan")
    assert play(pays).rollout.step_rewards == [None]


# ---- auxiliary conversations


@agent
async def with_a_title(endpoint: Endpoint) -> float:
    async with Client(endpoint) as client:
        await client.ask([user("Name this.")])
        answer = await client.ask([user("hi")], tools=[LOOKUP])
        await client.ask([user("hi"), answer, user("go on")], tools=[LOOKUP])
    async with Client(endpoint.named("planner")) as client:
        await client.ask([user("Plan.")])
    return 1.0


@pytest.mark.parametrize("auxiliary", ["train", "leave_out"])
def test_a_title_is_auxiliary_and_can_be_left_out(play: Play, auxiliary: str) -> None:
    rollout = play(with_a_title, auxiliary=auxiliary).rollout
    found = {branch.name: (branch.auxiliary, branch.trained) for branch in rollout.branches}
    assert found == {None: (True, auxiliary == "train"), "planner": (False, True)}


def test_where_no_conversation_has_tools_none_is_auxiliary(play: Play) -> None:
    @agent
    async def plain(endpoint: Endpoint) -> float:
        await two_turns(endpoint)
        await two_turns(endpoint, "another")
        return 1.0

    (branch,) = play(plain).rollout.branches
    assert not branch.auxiliary


# ---- what clients send


@pytest.fixture
def gateway(stage: Stage, hf_tokenizer: Any) -> Iterator[Gateway]:
    with serving(says(stage), hf_tokenizer, session_header="x-session-id") as gateway:
        yield gateway


@pytest.mark.parametrize(
    ("path", "header", "status"),
    [
        ("/r/a/as/judge", None, 200),
        ("/r/a/as/judge/untrained", None, 200),
        ("/r/a/as/%6Audge", None, 200),
        ("/r/a/as/untrained", None, 200),
        ("/r/a/as/untrained/untrained", None, 200),
        ("/r/a/as/judge/", None, 404),
        ("/r/a/as//untrained", None, 404),
        ("/r/a/as/judge/untrained/untrained", None, 404),
        ("/r/a/as/judge/trained", None, 404),
        ("/as/judge", None, 404),
        ("/r/a/as/a%2Fb", None, 400),
        ("/r/a/as/%2e%2e", None, 400),
        ("/r/a/as/a%00b", None, 400),
        ("/r/a/as/a%0Ab", None, 400),
        (f"/r/a/as/{'x' * 65}", None, 400),
        ("/r/a/as/%C3%A4", None, 400),
        ("/r/a%2Fas%2Fjudge", None, 400),
        ("/r/a", "judge", 200),
        ("/r/a", "", 400),
        ("/r/a", "a b", 400),
        ("/r/a", "a, b", 400),
        ("/r/a", "..", 400),
        ("/r/a", "\udcff", 400),
        ("/r/a", "judge/untrained", 400),
    ],
)
def test_names_in_addresses_and_headers(
    gateway: Gateway, path: str, header: str | None, status: int
) -> None:
    headers = {} if header is None else {"x-abut-name": header}
    with RawClient(gateway.base_url, gateway.endpoint("a").api_key) as client:
        client.send(f"{path}{CHAT}", BODY, **headers)
        answer = client.answer()
        assert answer is not None
        assert answer[0] == status, answer
        if status == 400 and "%2Fas" not in path:
            assert answer[2]["error"]["code"] == "wrong_name"


def test_a_name_opens_nothing(gateway: Gateway) -> None:
    """The key decides, before the name is looked at; an end has no name."""
    ask(gateway, [user("a")], "a")
    ask(gateway, [user("a")], "b")
    root = gateway.base_url.removesuffix("/v1")
    other = gateway.endpoint("b").api_key
    for path in (f"/r/a/as/judge{CHAT}", f"/r/a/as/..%2Fb{CHAT}", f"/r/a/as/judge/untrained{CHAT}"):
        status, answer, _ = post(f"{root}{path}", other, BODY)
        assert (status, answer["error"]["code"]) == (400, "wrong_api_key")
    assert post(f"{root}/r/a/as/judge/end", gateway.key, {"reward": 1.0})[0] == 404


def test_a_name_that_is_there_twice_is_refused(gateway: Gateway) -> None:
    with RawClient(gateway.base_url, gateway.key) as client:
        body = json.dumps(BODY).encode()
        head = client.head(f"/r/a{CHAT}", len(body), **{"x-abut-name": "a"}).decode()
        twice = head.replace("x-abut-name: a", "x-abut-name: a\r\nX-Abut-Name: b", 1)
        client.socket.sendall(twice.encode() + body)
        answer = client.answer()
        assert answer is not None
        assert answer[2]["error"]["message"].startswith("'a, b' is not a valid name")


@pytest.mark.parametrize("session", ["x" * 201, "ä", "a\tb"])
def test_a_session_is_printable_and_short(gateway: Gateway, session: str) -> None:
    with RawClient(gateway.base_url, gateway.key) as client:
        client.send(f"/r/a{CHAT}", BODY, **{"x-session-id": session})
        answer = client.answer()
        assert answer is not None
        assert (answer[0], answer[2]["error"]["code"]) == (400, "wrong_session")


def test_names_and_sessions_without_a_trainer(gateway: Gateway) -> None:
    endpoint = gateway.endpoint("a")
    for session in ("s1", "s2"):
        url = f"{endpoint.named('white').base_url}/chat/completions"
        assert post(url, endpoint.api_key, BODY, **{"x-session-id": session})[0] == 200
    url = f"{endpoint.named('judge', train=False).base_url}/chat/completions"
    assert post(url, endpoint.api_key, BODY)[0] == 200
    end = f"{endpoint.base_url.removesuffix('/v1')}/end"
    for body, said in (
        ({"rewards": {"black": 1.0}}, "AgentResult.rewards has 'black'"),
        ({"rewards": {"white": "x"}}, "reward='x': must be a finite number, or null"),
        ({"rewards": [1.0]}, "rewards must be an object"),
        ({"names": {"s1": "a b"}}, "names has 'a b', which is not a valid name"),
    ):
        status, answer, _ = post(end, gateway.key, body)
        assert status == 400
        assert answer["error"]["message"].startswith(said), answer
    rollout = gateway.end("a", 0.5, rewards={"white": 1.0, "s2": -1.0})
    rows = [row for row in (rollout.main_row, *rollout.branches) if row is not None]
    assert sorted((row.session or "", row.name, row.reward, row.trained) for row in rows) == [
        ("", "judge", None, False),
        ("s1", "white", 1.0, True),
        ("s2", "white", -1.0, True),
    ]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, BODY),
        ("/v1/messages", {**BODY, "max_tokens": 50}),
        ("/v1/responses", {"model": "m", "input": "hi"}),
    ],
)
def test_each_dialect_has_names_in_its_address(gateway: Gateway, path: str, body: Any) -> None:
    endpoint = gateway.endpoint("a")
    for named in (endpoint.named("a"), endpoint.named("b"), endpoint):
        root = named.base_url.removesuffix("/v1")
        status, answer, _ = post(f"{root}{path}", endpoint.api_key, body)
        assert status == 200, answer
    rollout = gateway.end("a")
    assert {rollout.name, *(branch.name for branch in rollout.branches)} == {None, "a", "b"}
    assert len(rollout.branches) == 2


def test_another_name_may_go_on_behind_a_response(gateway: Gateway) -> None:
    """The ledger has what was said before, and the conversation is the other name's own."""
    endpoint = gateway.endpoint("a")
    body: dict[str, Any] = {"model": "m", "input": "hi"}
    for name in ("a", "b"):
        url = f"{endpoint.named(name).base_url}/responses"
        status, answer, _ = post(url, endpoint.api_key, body)
        assert status == 200, answer
        body = {"model": "m", "input": "go on", "previous_response_id": answer["id"]}
    rollout = gateway.end("a")
    rows = {row.name: row for row in (rollout.main_row, *rollout.branches) if row is not None}
    assert rows.keys() == {"a", "b"}
    assert len(rows["a"].turns) == len(rows["b"].turns) == 1
    assert len(rows["b"].columns.prompt_ids) > len(rows["a"].columns.prompt_ids)


def test_untrained_calls_alone_without_a_trainer(gateway: Gateway) -> None:
    endpoint = gateway.endpoint("a").named("judge", train=False)
    assert post(f"{endpoint.base_url}/chat/completions", endpoint.api_key, BODY)[0] == 200
    rollout = gateway.end("a", 0.5)
    assert (rollout.failed, rollout.error) == (
        *(True, "no call that would be trained was answered"),
    )


def test_requests_without_an_id_go_on_with_their_own_name(gateway: Gateway) -> None:
    """Equal histories of two names, neither of which says its rollout."""
    url = f"{gateway.base_url}/chat/completions"
    ids = {}
    for name in ("a", "b", "a", "b"):
        messages = [user("hi")]
        if name in ids:
            messages += [{"role": "assistant", "content": "yes"}, user("go on")]
        body = {"model": "m", "messages": messages}
        status, _, headers = post(url, gateway.key, body, **{"x-abut-name": name})
        assert status == 200
        assert ids.setdefault(name, headers["x-abut-rollout"]) == headers["x-abut-rollout"]
    assert ids["a"] != ids["b"]


# ---- several ranks


def test_a_rank_passes_names_and_sessions_on(stage: Stage) -> None:
    first, second = Gateway(key="k" * 20), Gateway(key="k" * 20)
    first.registry.join_run("run0", rank=0)
    first.start()

    class Asks:
        session_header = "x-session-id"

        async def run(self, endpoint: Endpoint, task: Any) -> float:
            own = endpoint.base_url.partition("/r/")[0]
            first.registry.peers = {1: own}
            first.registry.session_headers.add("x-session-id")
            there = first.base_url.removesuffix("/v1")
            for named in (endpoint, endpoint.named("a"), endpoint.named("b", train=False)):
                url = named.base_url.replace(own, there)
                async with Client(replace(named, base_url=url)) as client:
                    for headers in ({"x-session-id": "s"}, {"x-abut-name": "c"}):
                        status, _ = await client.post(BODY, **headers)
                        assert status == 200
            return 1.0

    try:
        rollout = play_agents(stage, Asks(), gateway=second, rank=1).one
        assert rollout.error is None
        rows = [row for row in (rollout.main_row, *rollout.branches) if row is not None]
        assert sorted((row.name or "", row.session or "", row.trained) for row in rows) == [
            ("", "s", True),
            ("a", "", True),
            ("a", "s", True),
            ("b", "", False),
            ("b", "s", False),
            ("c", "", True),
        ]
        assert urlsplit(first.base_url).port != urlsplit(second.base_url).port
    finally:
        first.stop()
        second.stop()
