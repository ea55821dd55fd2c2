"""Clients of one rollout that do at random what clients do, and what the gateway must make of it.

Each step asks the session as a client would, with what some client would make of the history. What
the sampler has to get is known by who said what (`tree`), not by comparing texts. Behind each step
the history is edited in the ways of `edits`, and what matches is counted. A spelling writes all of
it in one protocol.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from abut.agents.protocol import AgentResult
from abut.gateway.dialects.chat import Chat
from abut.gateway.ledger.agent_call import AgentCall, AgentRequest, PolicyAnswer
from abut.gateway.ledger.branch import LedgerBranch, find_continuation, seen_in
from abut.gateway.ledger.callers import NOBODY, Caller
from abut.gateway.ledger.ledger import Ledger
from abut.gateway.ledger.matching import History, match
from abut.gateway.ledger.refusal import Refusal
from abut.gateway.ledger.row import RowChoice, fill, unfollowed_calls
from abut.gateway.server.body import Bodies
from abut.gateway.server.body_json import read_body
from abut.rollout.rollout import Rollout
from tests.kit.clients.edits import Edited, edits, some
from tests.kit.clients.habits import compose, own, rename
from tests.kit.clients.random_policy import STOPS, TOOLS, Heard, RandomPolicy
from tests.kit.clients.tree import (
    Item,
    Message,
    Node,
    Tree,
    agreed,
    answered,
    blank,
    differ,
    is_answer,
    said,
)
from tests.kit.dialects.spelling import Spelling, as_json
from tests.kit.stage.agents import check_tree, user

SESSION = "x-session-id"
NAMED = (Caller("a"), Caller("b", train=False), Caller("a", "s"), Caller(None, "s"))
CALLERS = (NOBODY, NOBODY, *NAMED)
seeds = st.integers(0, 2**32 - 1)


@dataclass(eq=False)
class Request:
    """What a client is about to ask."""

    body: dict[str, Any]
    """As a chat client says it; another one's spelling writes it in its protocol."""
    items: list[Item]
    """What each message stands for."""
    names: dict[str, str]
    """The client's ids of calls, and which they were before."""
    caller: Caller = NOBODY

    @property
    def messages(self) -> list[Message]:
        """With the gateway's ids."""
        messages: list[Message] = json.loads(json.dumps(self.body["messages"]))
        rename(messages, dict(self.names), known=True)
        return messages


@dataclass(eq=False)
class Asked:
    """What a client asked, and whether it still listens."""

    request: Request
    digest: bytes
    call: AgentCall
    is_open: Callable[[], bool]
    hang_up: Callable[[], None]


class Clients(RuleBasedStateMachine):
    """Many clients of one rollout, and all that its sampler hears."""

    hf: ClassVar[Any] = None
    spelling: ClassVar[Spelling] = Spelling()
    most_edits: ClassVar[int] = 60
    """Tried behind each step, of some hundreds."""
    figures: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()

    @initialize(seed=seeds)
    def begin(self, seed: int) -> None:
        self.policy = RandomPolicy(self.hf, random.Random(seed))
        self.session = Ledger("r0", self.policy, SESSION)
        self.bodies = Bodies()
        self.tree = Tree(self.hf, joins_system=self.spelling.system_later)
        self.spells = random.Random(seed)
        self.said_as: dict[bytes, str] = {}
        """By digest, what was asked."""
        self.asked: list[Asked] = []
        self.node_of: dict[AgentCall, Node] = {}
        self.tools_of: dict[str, Any] = {}
        """As who first named them wrote them: keys may come in any order."""

    def teardown(self) -> None:
        if hasattr(self, "session"):
            self.figures.update(self.session.client_rewrites)
            self.run(self.session.close())
        self.loop.close()

    def run(self, what: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(what)

    # ---- what clients do

    @rule(seed=seeds, hold=st.sampled_from([False, False, False, True]))
    def ask(self, seed: int, hold: bool) -> None:
        """Go on behind an answer, or begin: however the client writes what was said."""
        asked = self.send(self.request(random.Random(seed)))
        if not hold:
            self.answer(asked)

    @precondition(lambda self: self.known)
    @rule(seed=seeds)
    def edit(self, seed: int) -> None:
        """Go on behind a history that is another one now."""
        rng = random.Random(seed)
        node = rng.choice(self.known)
        tail = [user(self.policy.words.tag())]
        changed = [
            one
            for one in self.edited(node, rng, most=20, tail=tail)
            if not any(item[0] == "blank" for item in one[2]) and not any(map(blank, one[1]))
        ]
        if changed:
            _, messages, items = rng.choice(changed)
            body = self.body(messages, rng, frame=node.frame)
            self.answer(self.send(Request(body, items, {}, node.caller)))

    @precondition(lambda self: self.known)
    @rule(seed=seeds, alike=st.booleans())
    def ask_two_at_once(self, seed: int, alike: bool) -> None:
        rng = random.Random(seed)
        node = rng.choice(self.known)
        request = self.request(rng, node)
        one = self.send(request)
        two = self.send(request if alike else self.request(rng, node))
        assert one.call is not two.call
        self.answer(two)
        self.answer(one)

    @precondition(lambda self: self.asked)
    @rule(seed=seeds, retried=st.booleans())
    def repeat(self, seed: int, retried: bool) -> None:
        """After the answer was delivered, or while it is on its way."""
        before = random.Random(seed).choice(self.asked)
        again = self.send(before.request, retried=retried)
        assert again.digest == before.digest, "a retry is another request"
        self.answer(again)

    @precondition(lambda self: self.asked)
    @rule(seed=seeds)
    def repeat_as_another(self, seed: int) -> None:
        """An equal body under another name or session, which is no retry whatever it says."""
        rng = random.Random(seed)
        first = [
            asked.request for asked in self.asked if not any(map(is_answer, asked.request.items))
        ]
        if first:
            request = rng.choice(first)
            caller = rng.choice([other for other in CALLERS if other != request.caller])
            self.answer(self.send(replace(request, caller=caller), retried=True))

    @rule(seed=seeds, answered=st.booleans())
    def repeat_after_a_broken_connection(self, seed: int, answered: bool) -> None:
        request = self.request(random.Random(seed))
        before = self.send(request)
        before.hang_up()
        if answered:
            self.answer(before)
        again = self.send(request)
        assert again.call is before.call, "a sample that nobody got is given to who asks again"
        self.answer(again)

    @precondition(lambda self: self.waiting)
    @rule(seed=seeds)
    def hang_up(self, seed: int) -> None:
        """In mid-turn; the sampling goes on."""
        random.Random(seed).choice(self.waiting).hang_up()

    @precondition(lambda self: self.waiting)
    @rule(seed=seeds, fails=st.sampled_from([False, False, True]))
    def sample(self, seed: int, fails: bool) -> None:
        """What was asked for a while ago."""
        self.answer(random.Random(seed).choice(self.waiting), fails=fails)

    @property
    def known(self) -> list[Node]:
        """The answers that some client got."""
        return [node for node in self.tree.nodes if node.known]

    @property
    def waiting(self) -> list[Asked]:
        return [asked for asked in self.asked if not asked.call.answered.done()]

    # ---- requests

    def edited(
        self, node: Node, rng: random.Random, *, most: int, tail: Sequence[Message] = ()
    ) -> list[Edited]:
        """Edits of the history up to an answer, as the protocol has them, and what follows."""
        messages, items, _ = compose(node, rng, plainly=True)
        whole = self.spelling.normal([*messages, *tail], [*items, *map(said, tail)], {})
        assert whole is not None
        found = []
        kinds = edits(messages, items, node.path, rng, self.spelling.edits)
        for name, messages, items in some(kinds, most, rng):
            normal = self.spelling.normal([*messages, *tail], [*items, *map(said, tail)], {})
            # Some cannot be said, or say nothing, in this protocol.
            if normal is not None and not self.spelling.is_same(whole[0], normal[0]):
                found.append((name, *normal))
        return found

    def request(self, rng: random.Random, node: Node | None = None) -> Request:
        known = self.known
        if node is None and known:  # rather long conversations than many
            node = rng.choice([*known, *known[-2:], *known[-2:], None])
        other_tools, other_caller = rng.random() < 0.1, rng.random() < 0.1
        # Of another one's conversation an answer is one that somebody said: as it came.
        plainly = other_tools or other_caller
        habits = self.spelling.habits
        messages, items, names = compose(node, rng, plainly=plainly, habits=habits)
        caller = rng.choice(CALLERS) if node is None or other_caller else node.caller
        roots = [other for other in self.tree.nodes if other.before is None]
        if node is None and roots and rng.random() < 0.3:  # best of many
            root, tail = rng.choice(roots), []
            messages, items = json.loads(json.dumps(root.said)), [*root.items]
            caller = root.caller
        else:
            tail = self.tail(node, messages, rng)
        frame = node.frame if node and not other_tools else None
        if node and self.spelling.follows and not plainly and tail and rng.random() < 0.2:
            return self.follow_up(node, rng)
        olds = {new: old for old, new in names.items()}
        normal = self.spelling.normal([*messages, *tail], [*items, *[None] * len(tail)], olds)
        assert normal is not None, "a client says what its protocol cannot say"
        return Request(self.body(normal[0], rng, frame=frame), normal[1], olds, caller)

    def follow_up(self, node: Node, rng: random.Random) -> Request:
        """A request that names the answer which it follows, in place of all that was said."""
        messages: list[Message] = []
        items: list[Item] = []
        for step in node.path:
            messages += [*json.loads(json.dumps(step.said)), own(step)]
            items += [*step.items, answered(step, reasoning=True)]
        tail = self.tail(node, messages, rng) or [user(self.policy.words.tag())]
        normal = self.spelling.normal(tail, [None] * len(tail), {})
        assert normal is not None
        body = self.body([*messages, *normal[0]], rng, frame=node.frame)
        body |= {"previous_response_id": node.answer_id, "said_before": len(messages)}
        return Request(body, [*items, *normal[1]], {}, node.caller)

    def tail(
        self, node: Node | None, messages: Sequence[Message], rng: random.Random
    ) -> list[Message]:
        """What a client says behind an answer, at times nothing."""
        tag = self.policy.words.tag
        tail: list[Message] = []
        if node is None:
            if rng.random() < 0.5:
                tail.append({"role": "system", "content": f"Be brief. {tag()}"})
        elif messages and (calls := messages[-1].get("tool_calls")):
            for call in calls:
                text = rng.choice([f"found {tag()}", f" {tag()}\n", "42"])
                tail.append({"role": "tool", "tool_call_id": call["id"], "content": text})
            if rng.random() < self.spelling.shuffles:
                rng.shuffle(tail)
        elif rng.random() < 0.15:
            return []
        says_system = [message["role"] for message in tail] == ["system"]
        is_alone = says_system and not isinstance(self.spelling.dialect, Chat)
        if rng.random() < 0.7 or not tail or is_alone:
            tail.append(user(f" go  on {tag()} ") | rng.choice([{}, {"name": "me"}]))
        if rng.random() < 0.1:
            function = {"name": "search", "arguments": '{"a": 1}'}
            call = {"id": f"f{tag()}", "type": "function", "function": function}
            result = {"role": "tool", "tool_call_id": call["id"], "content": tag()}
            tail.append({"role": "assistant", "content": f"mine {tag()}", "tool_calls": [call]})
            tail += rng.choice([[], [result], [result, user(tag())]])
        if self.spelling.system_later and rng.random() < 0.15:
            later = {"role": "system", "content": f"Mind {tag()}"}
            tail.insert(rng.randrange(len(tail) + 1), later)
        return tail

    def body(
        self, messages: list[Message], rng: random.Random, *, frame: str | None
    ) -> dict[str, Any]:
        tools = rng.choice(TOOLS) if frame is None else json.loads(frame)[0]
        body: dict[str, Any] = {"model": "policy", "messages": messages}
        if tools or rng.random() < 0.3:
            body["tools"] = tools
        if rng.random() < 0.3 and self.spelling.has_stops:
            body["stop"] = rng.sample(STOPS, rng.choice([1, 2]))
        if rng.random() < 0.2:
            body["max_tokens"] = 90
        if rng.random() < 0.1 and isinstance(self.spelling.dialect, Chat):
            body["return_token_ids"] = True
        if rng.random() < 0.2 and not isinstance(self.spelling.dialect, Chat):
            body["lacks_ids"] = True
        return body

    # ---- asking, and what has to come of it

    def send(self, request: Request, *, retried: bool = False) -> Asked:
        """Ask, and see what the sampler is asked with."""
        self.figures["requests"] += 1
        read, digest = self.read(request)
        expected = self.given_again(request, digest, retried)
        heard = len(self.policy.heard)
        listens = asyncio.Event()
        listens.set()
        how = {"digest": digest, "retried": retried, "is_open": listens.is_set}
        call = self.run(_placed(lambda: self.session.ask(read, **how)))
        asked = Asked(request, digest, call, listens.is_set, listens.clear)
        if expected is None:
            assert call not in self.node_of
            self.run(_until(lambda: len(self.policy.heard) > heard))
            self.node_of[call] = self.placed(request, read.frame, self.policy.heard[-1])
            self.tree.begun.append(self.node_of[call])
        else:
            assert call is expected, "the sample of an equal body"
            assert len(self.policy.heard) == heard
        self.asked.append(asked)
        return asked

    def read(self, request: Request) -> tuple[AgentRequest, bytes]:
        """The request as the gateway reads it, and its digest."""
        dialect = self.spelling.dialect
        name, session, train = request.caller
        part = (name, train, {} if session is None else {SESSION: session})
        # Most clients write a history as they did before, so that its bytes are known.
        spells = random.Random(0) if self.spells.random() < 0.7 else self.spells
        text = json.dumps(self.spelling.body(request.body, spells)).encode()
        content = self.bodies.body("0", [text], dialect)
        body, beginning = read_body(content, dialect)
        assert body == json.loads(text)
        read = dialect.read(body, None if beginning is None else beginning.like).of_part(*part)
        whole = dialect.read(json.loads(text)).of_part(*part)
        assert (read, read.frame, read.digest) == (whole, whole.frame, whole.digest)
        if beginning is not None:
            self.figures["read on"] += beginning.like is not None
            beginning.request, beginning.like = read, None
            self.bodies.keep("0", beginning, content.earlier)
        if dialect.repeats_bytes:
            return read, text
        self.check_digest(request, read.digest)
        return read, read.digest

    def check_digest(self, request: Request, digest: bytes) -> None:
        """Requests with equal digests ask the same, but for the ids of calls."""
        numbers: dict[str, int] = {}
        for message in request.body["messages"]:
            for call in message.get("tool_calls") or ():
                numbers.setdefault(call["id"], len(numbers))
        asked = {key: value for key, value in request.body.items() if key != "lacks_ids"}
        asked["messages"] = [
            {key: value for key, value in message.items() if key != "pieces"}
            for message in asked["messages"]
        ]
        text = as_json({**asked, "tools": asked.get("tools") or []})
        for id_, number in numbers.items():
            text = text.replace(json.dumps(id_), str(number))
        before = self.said_as.setdefault(digest, text)
        assert before == text, f"two requests have one digest:\n{before}\n{text}"

    def given_again(self, request: Request, digest: bytes, retried: bool) -> AgentCall | None:
        """Whose sample an equal body gets, if any."""
        who = digest, request.caller
        equal = [one for one in self.asked if (one.digest, one.request.caller) == who]
        last = {asked.call: asked for asked in equal}
        same = [asked for call, asked in last.items() if call.may_be_reused]
        unheard = [asked for asked in same if not asked.call.delivered]
        for asked in unheard:
            if not asked.is_open():
                return asked.call
        return (unheard or same)[-1].call if retried and same else None

    def placed(self, request: Request, frame: str, heard: Heard) -> Node:
        """The oracle: all that was said, rendered anew, with the tokens that were recorded."""
        messages = request.messages
        tools = self.tools_of.setdefault(frame, request.body.get("tools"))
        prompts = []
        for path, place in self.tree.candidates(frame, request.items, request.caller):
            prompt = self.tree.prompt(path, messages[place:], tools)
            if prompt.is_of(heard.prompt):
                self.figures["extended" if path else "roots"] += 1
                before = path[-1] if path else None
                rest = messages[place:]
                items = [  # white space counts in what is not the policy's here
                    said(message) if item[0] == "blank" else item
                    for message, item in zip(rest, request.items[place:], strict=True)
                ]
                # A stop string is put back by clients of chats alone.
                stop = heard.chat.stop if isinstance(self.spelling.dialect, Chat) else ()
                names = self.tree.names()
                node = Node(before, rest, items, frame, {}, stop, heard, names)
                node.caller = request.caller
                self.figures["of somebody"] += node.caller != NOBODY
                return node
            prompts.append(prompt.text)
        got = self.policy.tokenizer.decode(heard.prompt)
        raise AssertionError(f"the sampler got\n{got!r}\nand not\n" + "\n".join(map(repr, prompts)))

    def answer(self, asked: Asked, *, fails: bool = False) -> None:
        """Let the sampler answer, and give that to who still listens."""
        call, node = asked.call, self.node_of[asked.call]
        node.heard.fails |= fails
        node.heard.go_on.set()
        try:
            answer = self.run(asyncio.shield(call.answered))
        except Refusal:
            assert node.heard.fails
            return
        if node not in self.tree.nodes:
            node.answer, node.answer_id = self.written(answer, call.request)
            self.tree.nodes.append(node)
        if asked.is_open():
            self.session.delivered(call)
            node.known = True

    def written(self, answer: PolicyAnswer, request: AgentRequest) -> tuple[Message, str]:
        """An answer as its client gets it, whole and as a stream, and its id."""
        dialect, how = self.spelling.dialect, (request, "policy", self.policy.tokenizer)
        body = json.loads(json.dumps(dialect.answer(answer, *how)))
        lines = b"".join(dialect.events(answer, *how)).decode().splitlines()
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
        assembled = self.spelling.assembled([json.loads(line) for line in data])
        assert as_json(assembled) == as_json(self.spelling.whole(body)), (
            "a stream is another answer"
        )
        return self.spelling.heard(body), body.get("id", "")

    # ---- what holds behind each step

    @invariant()
    def every_request_is_a_prefix_and_every_sample_stands_once(self) -> None:
        if not hasattr(self, "session"):
            return
        assert not self.policy.failures
        rows = [branch.conversation.trajectory.ids.tolist() for branch in self.session.branches]
        for heard in self.policy.heard:
            assert heard.request.prompt_ids.tolist() == heard.prompt, "a request was changed"
            assert any(ids[: len(heard.prompt)] == heard.prompt for ids in rows)
        calls = [
            (heard.request, heard.sample) for heard in self.policy.heard if heard.sample is not None
        ]
        for which in ("longest", "last", "random"):
            rollout = Rollout("r", 0)
            choice = RowChoice(which, seed=len(calls))  # type: ignore[arg-type]
            fill(rollout, self.session, choice, AgentResult(None))
            check_tree(rollout, calls)

    @invariant()
    def only_what_was_thrown_away_is_unfollowed(self) -> None:
        if not hasattr(self, "session"):
            return
        followed = {id(node.before) for node in self.tree.begun}
        for call in unfollowed_calls(self.session.branches):
            node = self.node_of[call]
            if any(before.is_blank for before in node.path):  # which of them it is cannot be told
                continue
            assert id(node) not in followed
            assert any(
                id(other) in followed
                for other in self.tree.nodes
                if other.before is node.before and other.heard.prompt == node.heard.prompt
            )

    @invariant()
    def only_what_was_said_is_matched(self) -> None:
        if not getattr(self, "tree", None) or not self.tree.nodes:
            return
        rng = self.policy.rng
        node = rng.choice(self.tree.nodes)
        for _ in range(3):
            messages, items, names = compose(node, rng, habits=self.spelling.habits)
            normal = self.spelling.normal(messages, items, {new: old for old, new in names.items()})
            assert normal is not None
            self.check_match("as clients write it", node, *normal)
            self.figures["rewritten"] += 1
        for name, messages, items in self.edited(node, rng, most=self.most_edits):
            self.check_match(name, node, messages, items)
            self.figures["edits"] += 1

    def check_match(
        self, name: str, node: Node, messages: list[Message], items: list[Item]
    ) -> None:
        """Each branch has just the answers of a history that are in both."""
        dialect = self.spelling.dialect
        chat = {"messages": json.loads(json.dumps(messages))}
        messages = dialect.read(self.spelling.body(chat, self.spells)).messages
        seen = seen_in(self.session.branches, messages)
        frame, caller = node.frame, node.caller
        of_caller = [branch for branch in self.session.branches if self.caller_of(branch) == caller]
        assert any(branch.frame == frame for branch in of_caller), "it is in another one's branch"
        for branch in of_caller:
            if branch.frame == frame:
                history = History(messages, seen, branch.writer.joints)
                path = [self.node_of[call] for call in branch.calls]
                found = match(branch.entries, history, dialect)
                wanted, _ = agreed(path, items, self.unanswered(branch))
                got = path[: found.turns]
                assert got == wanted, differ(name, messages, got, wanted, path)
        place = find_continuation(of_caller, frame, history, dialect)
        path = [self.node_of[call] for call in place.branch.calls] if place else []
        found_path = path[: place.found.turns] if place else []
        candidates = [_solid(path) for path, _ in self.tree.candidates(frame, items, caller)]
        assert _solid(found_path) in candidates, f"{name}: {json.dumps(messages)}"

    def caller_of(self, branch: LedgerBranch) -> Caller:
        return self.node_of[branch.calls[0]].caller if branch.calls else branch.caller

    def unanswered(self, branch: LedgerBranch) -> list[Item]:
        """What was said at the end of a branch."""
        if not branch.unanswered:
            return []
        ids = branch.conversation.trajectory.ids.tolist()
        asked = (node for node in self.tree.begun if node.heard.prompt == ids)
        return next(node.items for node in asked if node not in self.tree.nodes)


def _solid(path: Sequence[Node]) -> list[Node | None]:
    """The answers of a path; blank ones are alike."""
    return [None if node.is_blank else node for node in path]


async def _placed(ask: Callable[[], Any]) -> Any:
    return await ask().placed


async def _until(holds: Callable[[], bool]) -> None:
    for _ in range(100):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("the sampler is not asked")
