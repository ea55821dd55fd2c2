"""Training rows from agents' sessions: rows, tokens, and the time of a training step on them.

There are four ways to make rows from the same sessions: abut's conversations; one row per request;
requests merged when the prompt of one begins with all tokens of another; and TRL's own class,
which trains on the longest conversation of each session.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import NDArray

from abut import RolloutConfig
from abut.gateway import Gateway
from abut.samplers import Sample, SampleRequest
from benchmarks.agent_sessions import SessionRequest, call_id, sessions
from benchmarks.figures import Row, require_same
from benchmarks.timing import Check, Sides, interleave
from benchmarks.workbench import Workbench

ABUT, REQUESTS, MERGED, LONGEST = (
    "abut",
    "one row per request",
    "requests merged by prefix",
    "longest conversation only",
)
_ENDLESS = 10**6
_VOCABULARY, _WIDTH, _LAYERS = 4096, 64, 2


class TrainedRow(NamedTuple):
    """A training row."""

    ids: NDArray[np.int64]
    trained: NDArray[np.bool_]
    """True for each token that the loss counts."""


Rows: TypeAlias = dict[str, list[TrainedRow]]


def measure(workbench: Workbench) -> Row:
    """Make and count the rows of all sessions, and train on one session of each kind."""
    workbench.peer("aiohttp")
    torch, transformers = workbench.peer("torch"), workbench.peer("transformers")
    row = Row(
        "saved",
        "make training rows from recorded agent sessions, and train one step on them",
        equal="the number of trained tokens of abut, of one row per request, and of merged "
        "requests",
        notes=[
            "The sessions were recorded from unmodified programs "
            "(`benchmarks/agent_sessions.json`). Their policy was a script with short answers, and "
            "their texts are random words of the recorded lengths.",
            f"{REQUESTS} and {MERGED}: the chat template renders the prompt of each request from "
            "scratch. A request is merged with an earlier row if its prompt begins with all tokens "
            "of that row.",
            f"a training step: a forward and a backward pass of a small model ({_LAYERS} layers, "
            f"width {_WIDTH}) over the rows of the shortest session of each kind, one row at a "
            "time.",
        ],
    )
    every: dict[str, list[Rows]] = {}
    with _Policy(workbench.hf_tokenizer) as policy:
        for kind, held in sessions().items():
            short = [one for one in held if _bytes(one) <= workbench.scale.saved_bytes]
            if short:
                every[kind] = [policy.rows_of(f"{kind}-{k}", one) for k, one in enumerate(short)]
    for kind, found in every.items():
        counted = {side: [made for rows in found for made in rows[side]] for side in found[0]}
        row.add(f"{kind}: rows", _each(counted, lambda _: 1), unit="rows")
        row.add(f"{kind}: tokens", _each(counted, lambda made: len(made.ids)), unit="tokens")
        trained = _each(counted, lambda made: int(made.trained.sum()))
        row.add(f"{kind}: trained tokens", trained, unit="tokens")
        for side in (REQUESTS, MERGED):
            require_same(f"trained tokens of {kind}", side, trained[ABUT], trained[side])
        case = f"{kind}: tokens"
        row.need_ratio(
            f"{REQUESTS} ÷ {ABUT}, {case}", (REQUESTS, case), (ABUT, case), "at least", 2
        )
    step = _Step(torch, transformers)
    shortest = [min(found, key=_tokens) for found in every.values()]

    def prepare(number: int) -> tuple[Sides, Check]:
        sides = {
            side: _bound(step, [made for rows in shortest for made in rows[side]])
            for side in shortest[0]
        }
        return sides, lambda results: None

    row.add("a training step", interleave(prepare, workbench.scale.saved_rounds))
    return row


def _bytes(session: Sequence[SessionRequest]) -> int:
    return sum(len(json.dumps([request.messages, request.tools])) for request in session)


def _each(
    counted: dict[str, list[TrainedRow]], count: Callable[[TrainedRow], int]
) -> dict[str, list[float]]:
    return {side: [float(sum(map(count, made)))] for side, made in counted.items()}


def _tokens(rows: Rows) -> int:
    return sum(len(made.ids) for made in rows[REQUESTS])


def _bound(step: "_Step", rows: list[TrainedRow]) -> Callable[[], None]:
    return lambda: step(rows)


class _Policy:
    """A gateway whose policy gives the answers of the sessions."""

    max_context_tokens = _ENDLESS

    def __init__(self, hf_tokenizer: Any) -> None:
        self._hf_tokenizer = hf_tokenizer
        self._ids: list[int] = []
        config = RolloutConfig(max_completion_tokens=_ENDLESS)
        self._gateway = Gateway(sampler=self, tokenizer=hf_tokenizer, config=config)

    def __enter__(self) -> "_Policy":
        self._gateway.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._gateway.__exit__()

    async def sample(self, request: SampleRequest) -> Sample:
        """Return the next answer."""
        return Sample(np.array(self._ids), np.full(len(self._ids), -0.5, np.float32), "stop")

    def rows_of(self, name: str, session: Sequence[SessionRequest]) -> Rows:
        """Play a session, and return the rows that each side makes from it."""
        rollout_id = name.replace(" ", "-")
        endpoint = self._gateway.endpoint(rollout_id)
        url, key = f"{endpoint.base_url}/chat/completions", f"Bearer {endpoint.api_key}"
        ids: dict[str, str] = {}
        calls: list[tuple[list[int], list[int]]] = []
        for number, request in enumerate(session):
            encoded = self._hf_tokenizer(request.answer.spoken(), add_special_tokens=False)
            self._ids = list(encoded["input_ids"])
            body = json.dumps({"messages": _sent(request.messages), "tools": request.tools})
            for sent, given in ids.items():
                body = body.replace(json.dumps(sent), json.dumps(given))
            headers = {"Authorization": key, "Content-Type": "application/json"}
            with urlopen(Request(url, body.encode(), headers), timeout=60) as reply:
                said = json.load(reply)["choices"][0]["message"]
            for place, call in enumerate(said.get("tool_calls") or ()):
                ids[call_id(number, place)] = call["id"]
            prompt = self._hf_tokenizer.apply_chat_template(
                request.messages,
                tools=request.tools or None,
                add_generation_prompt=True,
                return_dict=False,
            )
            calls.append((list(prompt), self._ids))
        rollout = self._gateway.end(rollout_id, 1.0)
        assert rollout.columns is not None
        ours = [
            _row(columns.prompt_ids, columns.completion_ids, columns.env_mask)
            for columns in (rollout.columns, *(branch.columns for branch in rollout.branches))
        ]
        requests = [_row(prompt, said, np.ones(len(said))) for prompt, said in calls]
        return {ABUT: ours, REQUESTS: requests, MERGED: _merged(requests), LONGEST: ours[:1]}


def _sent(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with the arguments of calls as JSON in a string, as clients send them."""
    sent = []
    for message in messages:
        calls = message.get("tool_calls")
        if calls:
            message = message | {"tool_calls": [_in_a_string(call) for call in calls]}
        sent.append(message)
    return sent


def _in_a_string(call: dict[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(call["function"]["arguments"])
    return call | {"function": call["function"] | {"arguments": arguments}}


def _row(prompt: Any, completion: Any, mask: Any) -> TrainedRow:
    ids = np.concatenate([np.asarray(prompt, np.int64), np.asarray(completion, np.int64)])
    trained = np.zeros(len(ids), bool)
    trained[len(prompt) :] = np.asarray(mask) != 0
    return TrainedRow(ids, trained)


def _merged(requests: Sequence[TrainedRow]) -> list[TrainedRow]:
    """Join each request to the longest row that it begins with."""
    rows: list[TrainedRow] = []
    for ids, trained in requests:
        behind = [
            k
            for k, row in enumerate(rows)
            if len(row.ids) < len(ids) and np.array_equal(ids[: len(row.ids)], row.ids)
        ]
        if not behind:
            rows.append(TrainedRow(ids, trained))
            continue
        longest = max(behind, key=lambda k: len(rows[k].ids))
        joined = trained.copy()
        joined[: len(rows[longest].ids)] = rows[longest].trained
        rows[longest] = TrainedRow(ids, joined)
    return rows


class _Step:
    """A forward and a backward pass over rows, and a step of the optimizer."""

    def __init__(self, torch: Any, transformers: Any) -> None:
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=_VOCABULARY,
            hidden_size=_WIDTH,
            intermediate_size=2 * _WIDTH,
            num_hidden_layers=_LAYERS,
            num_attention_heads=4,
            max_position_embeddings=65_536,
        )
        self._torch = torch
        self._model = transformers.LlamaForCausalLM(config)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-4)

    def __call__(self, rows: Sequence[TrainedRow]) -> None:
        """Train on the rows, one at a time; logits are made for trained tokens only."""
        for ids, trained in rows:
            tokens = self._torch.from_numpy(ids % _VOCABULARY)[None]
            targets = np.flatnonzero(trained)
            hidden = self._model.model(tokens).last_hidden_state[0, targets - 1]
            logits = self._model.lm_head(hidden)
            loss = self._torch.nn.functional.cross_entropy(logits, tokens[0, targets])
            loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
