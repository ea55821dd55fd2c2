"""One rollout of an agent with a policy that says a script: does what it asks come here, and how.

Invariant: no model is asked. The policy calls the first tool that it is shown, and then answers, so
that an agent with tools makes two calls, which have to be one conversation.
"""

import asyncio
import functools
import json
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from abut._native import Tokenizer
from abut.concurrency.threads import work_done
from abut.errors import EnvError
from abut.gateway.ledger.agent_call import AgentRequest
from abut.gateway.ledger.ledger import Ledger
from abut.gateway.ledger.refusal import Refusal
from abut.gateway.ledger.unnamed import Unnamed
from abut.gateway.ledger.writer import RunWriters, Writer, Writers
from abut.gateway.server.registry import Registry
from abut.nemo_gym.checks import Finding
from abut.nemo_gym.replies import Reply, is_told, reply_of, unheard
from abut.nemo_gym.run_request import RunSession, expected_of, run_request
from abut.nemo_gym.servers import PlayedBy, Servers
from abut.processor import PartsProcessor
from abut.rollout.conversation import Budget, Conversation
from abut.samplers.sampler import Sample, SampleRequest
from abut.template.processor import ChatTemplateProcessor

_BUDGET = Budget(max_completion_tokens=100_000)
_LOGPROB = -0.5
_NO_DEVELOPER = (
    "a template may have no role developer: set replace_developer_role_with_system: true in its "
    "model server"
)
# Servers that score a whole group know it by this index. Groups of training count from 0, and a
# server may still remember the last probe, so each probe has one far away, and its own.
_FIRST_GROUP = 2**30
_VALUES: dict[str, Any] = {
    "integer": 1,
    "number": 1.0,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}

Template: TypeAlias = tuple[Tokenizer, ChatTemplateProcessor]
"""A model's tokenizer, and what writes conversations with it."""


class Script:
    """A policy of one rollout; see `abut.gateway.ledger.policy.Policy`.

    Args:
        writing: what writes its conversations; None: the demo's template, in which it can call.
        number: of the probe, which its answers say: who quotes one names the rollout by it.

    Attributes:
        asked: what came, in order.
        error: why it could not go on, if so.
    """

    def __init__(self, writing: RunWriters | None = None, *, number: int = 0) -> None:
        self._number = number
        self.max_turns: int | None = None
        self.error: Exception | None = None
        self.asked: list[AgentRequest] = []
        self.tokenizer, self._processors = writing or _demo()

    def conversation(self, processor: PartsProcessor) -> Conversation:
        """One in which nothing is said yet."""
        stops = tuple(processor.stop_token_ids)
        return Conversation(self.tokenizer, processor, stop_token_ids=stops, budget=_BUDGET)

    def budget(self) -> Budget:
        """What a conversation may have."""
        return _BUDGET

    def seed(self, number: int) -> int:
        """That of the sample of one call."""
        return number

    async def writer_of(self, request: AgentRequest) -> Writer:
        """What writes the conversation of a request."""
        return await self._processors.of(request)

    def note(self, request: AgentRequest) -> None:
        """Keep what is asked."""
        self.asked.append(request)

    async def sample(self, request: SampleRequest, chat: AgentRequest) -> Sample:
        """Say what the script says: a call of the first tool, then an answer."""
        text = f"This is probe {self._number}. The answer is A."
        if chat.tools and not any(message["role"] == "assistant" for message in chat.messages):
            text = _a_call(chat.tools[0]["function"])
        ids = [*self.tokenizer.encode(text).tolist(), request.stop_token_ids[0]]
        ids = ids[: request.max_tokens]
        logprobs = np.full(len(ids), _LOGPROB, dtype=np.float32)
        whole = ids[-1] in request.stop_token_ids
        return Sample(np.asarray(ids, dtype=np.int64), logprobs, "stop" if whole else "length")

    def failed(self, error: Exception) -> None:
        """Keep why it cannot go on."""
        self.error = error


async def probe(
    registry: Registry,
    servers: Servers,
    agent: str,
    row: Mapping[str, Any],
    *,
    number: int,
    timeout_s: float,
    is_example: bool = True,
) -> list[Finding]:
    """Have an agent play a row once, and say what came of it.

    Args:
        registry: of the gateway that runs.
        servers: of the head.
        agent: what plays it.
        row: of a dataset.
        number: of the probe, for its id and its answers.
        timeout_s: seconds that it may take.
        is_example: whether the row is one of the agent's; else its failure says little.
    """
    played = servers.of(agent)
    script = Script(number=number)
    rollout_id = registry.probe_id(number)
    session = Ledger(rollout_id, script, registry.rewrites)
    settings = {"temperature": 1.0, "top_p": 1.0, **registry.settings}
    group = _FIRST_GROUP + secrets.randbelow(_FIRST_GROUP)
    body = run_request(row, played, rollout_id=rollout_id, sampling=settings, group=group, place=0)
    expected = expected_of(servers, agent, row, registry.turn_timeout_s)
    await registry.ask(lambda: registry.open(session))
    await registry.ask(lambda: registry.expect(rollout_id, expected))
    posts = RunSession()
    reply: Reply | EnvError
    try:
        async with asyncio.timeout(timeout_s):
            status, answer = await posts.run(played.url, body)
        reply = await work_done(False, lambda: reply_of(played.agent, status, answer))
    except TimeoutError:
        reply = EnvError(
            f"it has not answered within {timeout_s:g} s; an environment that scores whole groups "
            'waits for more than one rollout: --no-play, or NemoGym(check="config"), plays none'
        )
    except EnvError as error:
        reply = error
    except OSError as error:
        reply = EnvError(f"{played.url} cannot be asked: {error}")
    finally:
        await posts.close()
        await registry.ask(lambda: registry.end(session))
    found = (
        []
        if registry.writing is None
        else await registry.ask(lambda: _written(played, registry, script))
    )
    judged = _judged(played.agent, script, session, reply, settings, is_example, registry.unnamed)
    return [*found, *judged]


async def _written(played: PlayedBy, registry: Registry, script: Script) -> list[Finding]:
    """Check that the run's template writes what was asked: the script was said in the demo's.

    On the loop of the gateway, which its processors belong to.
    """
    for request in script.asked:
        session = Ledger("written", Script(registry.writing), registry.rewrites)
        try:
            await session.ask(request, body=b"", retried=False, is_open=lambda: True).answered
        except Refusal as refusal:
            roles = {message["role"] for message in request.messages}
            why, _, hint = str(refusal).partition("\nhint: ")
            hint = _NO_DEVELOPER if "developer" in roles else hint
            return [
                Finding(
                    "error",
                    f"a probe rollout of agent {played.agent} asked what cannot be written with "
                    f"the chat template of this run: {why}",
                    hint,
                )
            ]
    return []


def _judged(
    agent: str,
    script: Script,
    session: Ledger,
    reply: Reply | EnvError,
    settings: Mapping[str, Any],
    is_example: bool,
    unnamed: Unnamed,
) -> Iterator[Finding]:
    what = f"a probe rollout of agent {agent}"
    if script.asked:
        yield from _sampling_findings(what, script, settings)
    if script.error is not None:
        yield Finding("error", f"{what} could not be answered: {script.error}")
        return
    if isinstance(reply, EnvError):
        level: Any = "error" if is_example else "warning"
        hint = "" if is_example else "--dataset FILE gives it a row of its own"
        said = f"{what} failed after {session.answered} calls: {reply}"
        if not (script.asked or unnamed.refused):
            said = f"{what} failed, and asked this gateway nothing: {reply}"
        yield Finding(level, said, hint, reply.may_pass)
        return
    if not script.asked and unnamed.refused:
        why, _, hint = str(unheard(agent, unnamed)).partition("\nhint: ")
        yield Finding("error", f"{what}: {why}", hint)
        return
    if not script.asked:
        yield Finding(
            "error",
            f"{what} asked this gateway nothing, and was answered all the same",
            "policy_base_url must be the gateway's address as Gym's machine reaches it",
        )
        return
    lines = [np.asarray(branch.conversation.trajectory.ids) for branch in session.branches]
    strange = [ids for ids, _ in reply.calls if not is_told(lines, ids)]
    if strange:
        yield Finding(
            "error",
            f"{what} came back with tokens that are not those of this gateway",
            "its model server must give the tokens of the answer, and tokenize nothing itself",
        )
    if not reply.calls:
        yield Finding(
            "warning",
            f"{what} came back without tokens, so rollouts cannot be compared with the ledger",
            "set return_token_id_information: true in its model server, if it has one",
        )
    if len(session.branches) > 1:
        causes = ", ".join(sorted({branch.cause or "first" for branch in session.branches[1:]}))
        yield Finding(
            "warning",
            f"{what} made {len(session.branches)} conversations of {session.answered} calls "
            f"({causes}): one of them becomes the row",
            "docs/agents.md says what goes on with a conversation; RolloutConfig.branch chooses",
        )
    if not strange:
        reward = "masked" if reply.masked else f"reward {reply.reward:g}"
        one = ", one conversation" if len(session.branches) == 1 else ""
        yield Finding("ok", f"{what}: {session.answered} calls{one}, {reward}")


def _sampling_findings(what: str, script: Script, settings: Mapping[str, Any]) -> Iterator[Finding]:
    for name in ("temperature", "top_p"):
        asked = {request.sampling.get(name) for request in script.asked}
        if isinstance(settings.get(name), int | float) and asked != {settings[name]}:
            yield Finding(
                "warning",
                f"{what} asked with {name}={', '.join(map(str, asked))}, and was told "
                f"{settings[name]}: the gateway samples by the trainer's all the same",
                "the agent has settings of its own, which say nothing in training",
            )


def writing_of(tokenizer: Tokenizer, processor: ChatTemplateProcessor) -> RunWriters:
    """Return what writes conversations with a model's tokenizer and chat template."""
    made = Writers(lambda tools, variables: processor.with_tools(tools, **variables))
    return RunWriters(tokenizer, made)


def _demo() -> RunWriters:
    return writing_of(*_demo_template())


@functools.cache
def _demo_template() -> Template:
    """The tokenizer that ships with abut, and what writes conversations with it."""
    from abut.demo.model import load_demo_tokenizer

    hf_tokenizer = load_demo_tokenizer()
    return Tokenizer.from_pretrained(hf_tokenizer), ChatTemplateProcessor(hf_tokenizer)


def _a_call(function: Mapping[str, Any]) -> str:
    """A call of a tool with the least that its schema takes."""
    schema = function.get("parameters") or {}
    properties = schema.get("properties") or {}
    required = schema.get("required") or ()
    arguments = {name: _a_value(properties.get(name) or {}) for name in required}
    call = json.dumps({"name": function["name"], "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


def _a_value(schema: Mapping[str, Any]) -> Any:
    if isinstance(choices := schema.get("enum"), list) and choices:
        return choices[0]
    kind = schema.get("type")
    return _VALUES.get(kind[0] if isinstance(kind, list) and kind else str(kind), "x")
