"""A teacher served by vLLM.

Invariant: abut sends rows to a server only after checking that the server has the student's
tokenizer, has room for the longest row, and returns as many candidates as the loss needs.
"""

import asyncio
import itertools
import json
import logging
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abut.address import Address, check_one_authorization, checked_headers
from abut.concurrency.clock import backoff
from abut.concurrency.threads import THREADS
from abut.errors import SamplerError, TeacherError, TeacherUnavailable
from abut.pickling import stays
from abut.trl.teachers.prompt_logprobs import read_prompt_logprobs
from abut.trl.teachers.teacher import Student, TeacherScores, checked_scores

if TYPE_CHECKING:
    from abut.samplers.fleet_server import FleetServer, Refused

logger = logging.getLogger(__name__)

Urls: TypeAlias = str | Sequence[str]

_PATH = "/v1/completions"
# Longer than the first request to a server that has just started takes.
_CHECK_S = 120.0
# Words, spaces, digits, signs, other scripts and an emoji: tokenizers differ in all of them.
_PROBE = (
    "The quick brown fox's 12345 + 6.789e-3 =\n\n\tdef f(x):  return x**2 # 蒸馏 дистилляция 🦊\r\n"
)
# How many tokens of the probe are scored.
_SCORED = 32
_HINTS = {
    "logprobs": "start the server with --max-logprobs {top_k}, or set a smaller teacher_top_k",
    "vocab": "use a teacher with the student's tokenizer",
    "context length": "lower RolloutConfig(max_context_tokens=…), or raise --max-model-len",
}


class _Named:
    """The servers of one teacher name, for one student, on one event loop."""

    def __init__(self, teacher: "VllmTeacher", name: str, student: Student) -> None:
        from abut.samplers.fleet import Fleet

        self.name = name
        self.model = teacher.models.get(name)
        self.fleet: Fleet = Fleet(
            teacher.addresses[name],
            self._check,
            headers=teacher.headers,
            give_up_s=math.inf,
            check_s=_CHECK_S,
            on_restart="resume",
        )
        self.slots = asyncio.Semaphore(teacher.max_requests)
        self.asked: dict[Any, asyncio.Task[TeacherScores]] = {}
        self._student = student
        self._give_up_s = teacher.give_up_s
        self._numbers = itertools.count()

    async def start(self) -> None:
        """Wait until a server passes its checks.

        Raises:
            TeacherUnavailable: no server passed its checks within `give_up_s`.
            TeacherError: a server cannot score the student.
        """
        try:
            async with asyncio.timeout(self._give_up_s):
                await self.fleet.__aenter__()
        except TimeoutError:
            raise self._unavailable("no server passed its checks") from None

    async def stop(self) -> None:
        """Cancel the pending requests and close the connections."""
        for task in self.asked.values():
            task.cancel()
        await asyncio.gather(*self.asked.values(), return_exceptions=True)
        await self.fleet.__aexit__()

    async def score(
        self, ids: NDArray[np.int64], positions: NDArray[np.int64], top_k: int
    ) -> TeacherScores:
        """Request the scores of a row, or wait for the answer to an identical request."""
        key = (ids.tobytes(), positions.tobytes(), top_k)
        if (task := self.asked.get(key)) is None:
            task = self.asked[key] = asyncio.create_task(self._score(ids, positions, top_k))
            task.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(task)

    def _forget(self, key: Any, task: "asyncio.Task[TeacherScores]") -> None:
        del self.asked[key]
        if not task.cancelled():
            task.exception()  # marks it as retrieved; its waiters may be cancelled

    async def _score(
        self, ids: NDArray[np.int64], positions: NDArray[np.int64], top_k: int
    ) -> TeacherScores:
        from abut.samplers.fleet_server import Refused

        # One row per request, because several rows in one request fail together. One request per
        # row and not per turn, because vLLM does not use its prefix cache for prompt_logprobs, so
        # each turn would cost its whole prefix.
        body = self._body(ids, top_k)
        number = str(next(self._numbers))
        async with self.slots:
            try:
                async with asyncio.timeout(self._give_up_s):
                    content = await self._ask(number, body, tokens=len(ids) * (top_k + 1))
            except TimeoutError:
                raise self._unavailable(f"a row of {len(ids)} tokens was not scored") from None
            except Refused as error:
                raise TeacherError(
                    f"the teacher {self.name!r}: {error}{_hint(error, top_k)}"
                ) from error
            finally:
                self.fleet.forget(number)
            return await THREADS.ask(
                lambda: self._read(content, ids, positions, top_k, f"the teacher {self.name!r}")
            )

    async def _ask(self, number: str, body: bytes, *, tokens: int) -> bytes:
        """Return the answer of a healthy server; retries without limit, so the caller sets one."""
        pauses_s = backoff(1.0, 10.0)
        while True:
            try:
                return (await self.fleet.ask(number, _PATH, body, tokens=tokens))[1]
            except SamplerError as error:  # a server failed again and again
                logger.debug("the teacher %r: %s", self.name, error)
                await asyncio.sleep(next(pauses_s))

    def _read(
        self,
        content: bytes,
        ids: NDArray[np.int64],
        positions: NDArray[np.int64],
        top_k: int,
        where: str,
    ) -> TeacherScores:
        try:
            return read_prompt_logprobs(content, ids, positions, top_k)
        except TeacherError as error:
            raise TeacherError(f"{where}: {error}") from error

    def _body(self, ids: NDArray[np.int64], top_k: int) -> bytes:
        body = {
            "model": self.model,
            "prompt": ids.tolist(),
            "max_tokens": 1,  # vLLM refuses 0
            "temperature": 1.0,
            "prompt_logprobs": top_k,
        }
        return json.dumps(body).encode()

    def _unavailable(self, what: str) -> TeacherUnavailable:
        troubles = self.fleet.troubles()
        return TeacherUnavailable(
            f"the teacher {self.name!r}: {what} within give_up_s={self._give_up_s:g}"
            + (f":\n{troubles}" if troubles else "")
            + "\nhint: check that the server is running at this address"
        )

    async def _check(self, server: "FleetServer") -> None:
        """Check that a server can score the student.

        Raises:
            TeacherError: the server cannot.
        """
        from abut.samplers.fleet_server import Refused

        where = f"the teacher {self.name!r} at {server.url}"
        try:
            await self._check_model(server, where)
            ids = await self._check_tokenizer(server, where)
            scored, top_k = np.asarray(ids[:_SCORED], np.int64), self._student.top_k
            tokens = len(scored) * (top_k + 1)
            content = await self.fleet.send(server, _PATH, self._body(scored, top_k), tokens=tokens)
            scores = self._read(content, scored, np.arange(1, len(scored)), top_k, where)
            checked_scores(scores, scored[1:], top_k, self.name)
        except Refused as error:
            raise TeacherError(f"{where}: {error}{_hint(error, self._student.top_k)}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TeacherError(
                f"{where} does not answer as vLLM does: {type(error).__name__}: {error}"
            ) from error

    async def _check_model(self, server: "FleetServer", where: str) -> None:
        models = json.loads(await self.fleet.send(server, "/v1/models"))["data"]
        served = {model["id"]: model.get("max_model_len") for model in models}
        self.model = self.model or next(iter(served), None)
        if self.model not in served:
            raise TeacherError(
                f"{where} does not serve the model {self.model!r}; it serves: "
                f"{', '.join(map(repr, served)) or 'none'}\n"
                f"hint: VllmTeacher(…, models={{{self.name!r}: …}})"
            )
        longest, holds = self._student.max_tokens, served[self.model]
        if longest is not None and holds is not None and holds < longest + 1:
            raise TeacherError(
                f"{where} has a context of {holds} tokens but needs {longest + 1}: rows may have "
                f"{longest} tokens, and vLLM always samples one more\n"
                f"hint: start the server with --max-model-len {longest + 1}, or set "
                f"RolloutConfig(max_context_tokens={holds - 1})"
            )

    async def _check_tokenizer(self, server: "FleetServer", where: str) -> list[int]:
        """Compare the server's tokens of a test string with the student's, and return them.

        With another vocabulary of the same size, the server would silently score other tokens.
        """
        tokenizer = self._student.tokenizer
        added = [str(token) for token in getattr(tokenizer, "added_tokens_decoder", {}).values()]
        text = _PROBE + "".join(added[:64])
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        answer = json.loads(
            await self.fleet.send(server, "/tokenize", json.dumps(body).encode(), tokens=len(text))
        )
        theirs = list(answer["tokens"])
        ours = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        if ours != theirs:
            at = next(
                (k for k, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
                min(len(ours), len(theirs)),
            )
            raise TeacherError(
                f"{where} has a different tokenizer than the student: token {at} of a test text "
                f"is {theirs[at : at + 1]} there and {ours[at : at + 1]} here\n"
                "hint: use a teacher with the student's tokenizer, because it scores the "
                "student's token ids"
            )
        return ours


@stays(
    "it holds connections of this process",
    hint="send the arguments, and make the teacher in the other process",
)
class VllmTeacher:
    """A teacher on one or more `vllm serve` servers; several may serve the same model.

    Each row is one request to a healthy server of the row's teacher name. If a server fails, the
    request goes to another one, or to the same one after a pause, until `give_up_s` has passed.
    Identical rows that are pending at the same time share one request. vLLM computes the logprobs
    at temperature 1, whatever the request says.

    Args:
        base_urls: one or several addresses, `http://host:port`; or a mapping to these from the
            names in the dataset's column `teacher_id`. `user:password@` becomes a header.
        models: the served model name for each teacher name; without one, abut requests the first
            model that the server lists.
        api_key: sent as a bearer token.
        give_up_s: how long one row may take over all attempts; also how long `open` waits for a
            server.
        max_requests: how many rows may be in flight for each teacher name.

    Raises:
        ValueError: there is no address, or one is invalid or given twice.
    """

    temperature = 1.0

    def __init__(
        self,
        base_urls: Urls | Mapping[str, Urls],
        *,
        models: Mapping[str, str] | None = None,
        api_key: str | None = None,
        give_up_s: float = 300.0,
        max_requests: int = 64,
    ) -> None:
        named = dict(base_urls) if isinstance(base_urls, Mapping) else {"default": base_urls}
        self.names = tuple(named)
        self.addresses = {name: _addresses(name, urls) for name, urls in named.items()}
        self.models = dict(models or {})
        if not named or not self.models.keys() <= named.keys():
            raise ValueError(
                f"VllmTeacher got URLs for the names {list(named)}, but models= has the names "
                f"{list(self.models)}\n"
                'hint: VllmTeacher({"math": ["http://a:8001", "http://b:8001"]})'
            )
        if not give_up_s > 0 or max_requests < 1:
            raise ValueError(f"{give_up_s=}, {max_requests=}: must be more than 0")
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self.headers = checked_headers("api_key", headers)
        for address in itertools.chain(*self.addresses.values()):
            check_one_authorization("api_key", address, self.headers)
        self.give_up_s = give_up_s
        self.max_requests = max_requests
        self._open: dict[asyncio.AbstractEventLoop, dict[str, _Named]] = {}

    @asynccontextmanager
    async def open(self, student: Student) -> AsyncIterator[None]:
        """Connect from this event loop, and wait until one server of each name passes its checks.

        Raises:
            TeacherUnavailable: no server of a name did within `give_up_s`.
            TeacherError: a server cannot score the student, because it has another tokenizer, has
                too little room, or returns too few candidates.
        """
        loop = asyncio.get_running_loop()
        if loop in self._open:
            raise TeacherError(
                "this VllmTeacher is already open in this event loop\n"
                "hint: make another VllmTeacher"
            )
        named = {name: _Named(self, name, student) for name in self.names}
        async with AsyncExitStack() as stack:
            for each in named.values():
                await each.start()
                stack.push_async_callback(each.stop)
            self._open[loop] = named
            stack.callback(self._open.pop, loop)
            yield

    async def score(
        self, ids: NDArray[np.int64], positions: NDArray[np.int64], top_k: int, name: str
    ) -> TeacherScores:
        """Score tokens of a row; see `Teacher.score`.

        Raises:
            TeacherUnavailable: no server scored the row within `give_up_s`.
            TeacherError: a server refused the row, or returned an invalid answer.
        """
        named = self._open.get(asyncio.get_running_loop())
        if named is None:
            raise TeacherError(
                "the VllmTeacher is not open\nhint: async with teacher.open(student)"
            )
        return await named[name].score(ids, positions, top_k)


def _addresses(name: str, urls: Urls) -> list[Address]:
    given = [urls] if isinstance(urls, str) else list(urls)
    found = [Address.of(url) for url in given]
    found = [Address(each.url.removesuffix("/v1"), each.headers) for each in found]
    if not found or len({each.url for each in found}) < len(found):
        raise ValueError(
            f"the teacher {name!r} has the addresses {[each.url for each in found]}: expected at "
            "least one, and no address twice\n"
            "hint: VllmTeacher('http://localhost:8001')"
        )
    return found


def _hint(error: "Refused", top_k: int) -> str:
    """Return the hint line for an error from vLLM, or an empty text."""
    if error.status in (401, 403):
        return "\nhint: pass VllmTeacher(…, api_key=…)"
    if error.status == 404 and error.path == "/tokenize":
        return "\nhint: start `vllm serve` without --skip-tokenizer-init"
    for part, hint in _HINTS.items():
        if part in error.said:
            return f"\nhint: {hint.format(top_k=top_k)}"
    return ""
