"""Probe rollouts: an agent plays once with a scripted policy, to see how its calls arrive.

Invariant: no model is called. The policy calls the first tool that it is offered, and then answers,
so that an agent with tools makes two calls, which must become one conversation.
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
from abut.nemo_gym.run_request import RunSession, expected_of, run_request
from abut.nemo_gym.run_result import RunResult, is_in_ledger, read_result, unheard
from abut.nemo_gym.servers import PlayedBy, Servers
from abut.processor import PartsProcessor
from abut.rollout.budget import Budget
from abut.rollout.conversation import Conversation
from abut.samplers.sampler import Sample, SampleRequest
from abut.template.processor import ChatTemplateProcessor

_BUDGET = Budget(max_completion_tokens=100_000)
_LOGPROB = -0.5
_NO_DEVELOPER = (
    "if the chat template has no role developer, set replace_developer_role_with_system: true in "
    "the model server"
)
# Servers that score a whole group know it by its index. Groups of training count from 0, and a
# server may still remember the last probe, so each probe takes a random index far away.
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
"""A model's tokenizer, and the processor of its chat template."""


class ScriptedPolicy:
    """The policy of one probe rollout; a `Policy` for the gateway's ledger.

    Args:
        writing: writes its conversations; None: the demo's template, in which it can call tools.
        number: the probe's number. Its answers contain it, so that a request that quotes one can
            be matched with its rollout.

    Attributes:
        asked: the requests, in order.
        error: why it could not continue, if it could not.
    """

    def __init__(self, writing: RunWriters | None = None, *, number: int = 0) -> None:
        self._number = number
        self.max_turns: int | None = None
        self.max_calls: int | None = None
        self.max_rollout_tokens: int | None = None
        self.error: Exception | None = None
        self.asked: list[AgentRequest] = []
        self.tokenizer, self._processors = writing or writing_of(*_demo_template())

    def conversation(self, processor: PartsProcessor) -> Conversation:
        """Return an empty conversation."""
        stops = tuple(processor.stop_token_ids)
        return Conversation(self.tokenizer, processor, stop_token_ids=stops, budget=_BUDGET)

    def budget(self) -> Budget:
        """Return the budget of a conversation."""
        return _BUDGET

    def seed(self, number: int) -> int:
        """Return the seed of a call's sample."""
        return number

    async def writer_of(self, request: AgentRequest) -> Writer:
        """Return the processor that writes the conversation of a request."""
        return await self._processors.of(request)

    def note(self, request: AgentRequest) -> None:
        """Keep the request."""
        self.asked.append(request)

    async def sample(self, request: SampleRequest, chat: AgentRequest) -> Sample:
        """Call the first tool, then answer."""
        text = f"This is probe {self._number}. The answer is A."
        if chat.tools and not any(message["role"] == "assistant" for message in chat.messages):
            text = _a_call(chat.tools[0]["function"])
        ids = [*self.tokenizer.encode(text).tolist(), request.stop_token_ids[0]]
        ids = ids[: request.max_tokens]
        logprobs = np.full(len(ids), _LOGPROB, dtype=np.float32)
        whole = ids[-1] in request.stop_token_ids
        return Sample(np.asarray(ids, dtype=np.int64), logprobs, "stop" if whole else "length")

    def failed(self, error: Exception) -> None:
        """Keep the error that ended the rollout."""
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
    """Let an agent play a row once, and return the findings.

    Args:
        registry: the registry of the gateway that runs.
        servers: the head's servers.
        agent: the agent's name.
        row: a row of a dataset.
        number: the probe's number, for its id and its answers.
        timeout_s: seconds that the rollout may take.
        is_example: whether the row is one of the agent's own; otherwise a failure is only a
            warning.
    """
    played = servers.of(agent)
    script = ScriptedPolicy(number=number)
    rollout_id = registry.probe_id(number)
    ledger = Ledger(rollout_id, script)
    settings = {"temperature": 1.0, "top_p": 1.0, **registry.settings}
    group = _FIRST_GROUP + secrets.randbelow(_FIRST_GROUP)
    body = run_request(row, played, rollout_id=rollout_id, sampling=settings, group=group, place=0)
    expected = expected_of(servers, agent, row, registry.turn_timeout_s)
    await registry.ask(lambda: registry.open(ledger))
    await registry.ask(lambda: registry.expect(rollout_id, expected))
    posts = RunSession()
    result: RunResult | EnvError
    try:
        async with asyncio.timeout(timeout_s):
            status, answer = await posts.run(played.url, body)
        result = await work_done(False, lambda: read_result(played.agent, status, answer))
    except TimeoutError:
        result = EnvError(
            f"it did not answer within {timeout_s:g} s; if the environment scores whole groups, "
            'it waits for further rollouts: use --no-play or NemoGym(check="config") to skip the '
            "probe"
        )
    except EnvError as error:
        result = error
    except OSError as error:
        result = EnvError(f"{played.url} cannot be reached: {error}")
    finally:
        await posts.close()
        await registry.ask(lambda: registry.end(ledger))
    found = (
        []
        if registry.writers is None
        else await registry.ask(lambda: _written(played, registry, script))
    )
    judged = _judged(played.agent, script, ledger, result, settings, is_example, registry.unnamed)
    return [*found, *judged]


async def _written(played: PlayedBy, registry: Registry, script: ScriptedPolicy) -> list[Finding]:
    """Check that the run's template can write the requests, because the probe used the demo's.

    Runs on the gateway's loop, because its processors belong to that loop.
    """
    for request in script.asked:
        ledger = Ledger("written", ScriptedPolicy(registry.writers))
        try:
            await ledger.ask(request, digest=b"", retried=False, is_open=lambda: True).answered
        except Refusal as refusal:
            roles = {message["role"] for message in request.messages}
            why, _, hint = str(refusal).partition("\nhint: ")
            hint = _NO_DEVELOPER if "developer" in roles else hint
            return [
                Finding(
                    "error",
                    f"a probe rollout of agent {played.agent} sent messages that the chat "
                    f"template of this run cannot write: {why}",
                    hint,
                )
            ]
    return []


def _judged(
    agent: str,
    script: ScriptedPolicy,
    ledger: Ledger,
    result: RunResult | EnvError,
    settings: Mapping[str, Any],
    is_example: bool,
    unnamed: Unnamed,
) -> Iterator[Finding]:
    what = f"a probe rollout of agent {agent}"
    if script.asked:
        yield from _sampling_findings(what, script, settings)
    if script.error is not None:
        yield Finding("error", f"{what} sent a request that could not be answered: {script.error}")
        return
    if isinstance(result, EnvError):
        level: Any = "error" if is_example else "warning"
        hint = (
            "" if is_example else "pass --dataset FILE to probe the agent with one of its own rows"
        )
        said = f"{what} failed after {ledger.answered_calls} calls: {result}"
        if not (script.asked or unnamed.refused):
            said = f"{what} failed without calling this gateway: {result}"
        yield Finding(level, said, hint, result.may_pass)
        return
    if not script.asked and unnamed.refused:
        why, _, hint = str(unheard(agent, unnamed)).partition("\nhint: ")
        yield Finding("error", f"{what}: {why}", hint)
        return
    if not script.asked:
        yield Finding(
            "error",
            f"{what} finished without calling this gateway",
            "set policy_base_url to the gateway's address as Gym's machine reaches it",
        )
        return
    lines = [np.asarray(branch.conversation.trajectory.ids) for branch in ledger.branches]
    strange = [ids for ids, _ in result.calls if not is_in_ledger(lines, ids)]
    if strange:
        yield Finding(
            "error",
            f"{what} returned tokens that this gateway did not sample",
            "its model server must return the tokens of the gateway's answer and must not "
            "tokenize text itself",
        )
    if not result.calls:
        yield Finding(
            "warning",
            f"{what} returned no tokens, so abut cannot compare rollouts with what it sampled",
            "if it has a model server, set return_token_id_information: true there",
        )
    if len(ledger.branches) > 1:
        causes = ", ".join(sorted({branch.cause or "first" for branch in ledger.branches[1:]}))
        yield Finding(
            "warning",
            f"{what} made {len(ledger.branches)} conversations of {ledger.answered_calls} calls "
            f"({causes}); with a trainer that takes one row per rollout, only one of them is "
            "trained",
            "see docs/integrations/agents.md for what continues a conversation; "
            "RolloutConfig.branch chooses the one to train",
        )
    if not strange:
        reward = "masked" if result.masked else f"reward {result.reward:g}"
        one = ", one conversation" if len(ledger.branches) == 1 else ""
        yield Finding("ok", f"{what}: {ledger.answered_calls} calls{one}, {reward}")


def _sampling_findings(
    what: str, script: ScriptedPolicy, settings: Mapping[str, Any]
) -> Iterator[Finding]:
    for name in ("temperature", "top_p"):
        asked = {request.sampling.get(name) for request in script.asked}
        if isinstance(settings.get(name), int | float) and asked != {settings[name]}:
            yield Finding(
                "warning",
                f"{what} sent {name}={', '.join(map(str, asked))} instead of {settings[name]}; "
                "the gateway ignores it and samples with the trainer's settings",
                "nothing to change for training: the sampling settings of the agent have no effect",
            )


def writing_of(tokenizer: Tokenizer, processor: ChatTemplateProcessor) -> RunWriters:
    """Return the writer of conversations with a model's tokenizer and chat template."""
    made = Writers(lambda tools, variables: processor.with_tools(tools, **variables))
    return RunWriters(tokenizer, made)


def template_of(hf_tokenizer: Any) -> Template:
    """Return a model's tokenizer and the processor of its chat template.

    Raises:
        AbutError: abut cannot use the tokenizer or the template exactly.
    """
    return Tokenizer.from_pretrained(hf_tokenizer), ChatTemplateProcessor(hf_tokenizer)


@functools.cache
def _demo_template() -> Template:
    from abut.demo.model import load_demo_tokenizer

    return template_of(load_demo_tokenizer())


def _a_call(function: Mapping[str, Any]) -> str:
    """Return a call of a tool with its required arguments only."""
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
