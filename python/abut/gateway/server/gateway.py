"""The gateway: an OpenAI-compatible endpoint in front of the policy.

Invariant: a run has one server, however many agents and batches it has; between batches the server
answers that a rollout is over. Its event loop never runs foreign or slow code, because every
rollout waits for it.
"""

import atexit
import functools
import logging
import os
import stat
import sys
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

from abut.address import Address
from abut.agents.protocol import Endpoint, checked_session_header
from abut.concurrency.loop import DaemonLoop
from abut.errors import EnvError, MissingExtraError
from abut.gateway.dialects.anthropic import Anthropic, AnthropicRewrite
from abut.gateway.dialects.chat import Chat, ChatRewrite
from abut.gateway.dialects.gemini import Gemini, GeminiRewrite
from abut.gateway.dialects.responses import Responses, ResponsesRewrite
from abut.gateway.ledger.ledger import Ledger
from abut.gateway.ledger.refusal import Refusal
from abut.gateway.server.client_policy import shared_sampler
from abut.gateway.server.open_agents import OpenAgents
from abut.gateway.server.registry import MODEL, MOST_BODY_BYTES, Registry
from abut.gateway.server.results import checked_result
from abut.gateway.server.standalone import Standalone
from abut.pickling import stays
from abut.records.recorder import Recorder
from abut.rollout.config import RolloutConfig
from abut.rollout.rollout import Rollout
from abut.samplers.sampler import Sampler

logger = logging.getLogger(__name__)

DIALECTS = (Chat, Anthropic, Responses, Gemini)
Rewrite: TypeAlias = Literal[ChatRewrite, ResponsesRewrite, AnthropicRewrite, GeminiRewrite]
"""A change that a client is known to make to an answer of the policy."""
REWRITES: tuple[Rewrite, ...] = get_args(Rewrite)
KEY_VARIABLE = "ABUT_GATEWAY_KEY"
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "max_tokens")
"""The names of the settings in `Gateway.sampling`."""
_START_S = 30.0
_OPEN_FILES = 65536
_CONNECTIONS_FRAC = 0.45
_CLOSE_S = 2.0


@stays(
    "it holds a server, connections and rollouts of this process",
    hint="make the gateway in the process that trains, and give other processes its address and "
    "key",
)
class Gateway:
    """An HTTP server with an OpenAI-compatible endpoint for each rollout of an agent.

    `make_rollout_func(gateway=…)` starts it with the first batch that needs it, and it stops when
    the process ends. With its own sampler it serves without a trainer, as a context manager:

        with Gateway(sampler=VLLMServerSampler(url), tokenizer="Qwen/Qwen3-8B") as gateway:
            reward = play(gateway.endpoint("game-1"))
            rollout = gateway.end("game-1", reward)

    Without a trainer the client's sampling settings are used, and its first request opens a
    rollout. Every request needs an API key: each rollout has its own, and `key` opens all rollouts
    of the run.

    Args:
        host: the name or address of this machine on which it listens. The default is the loopback,
            which only this machine reaches.
        port: the port; 0 takes a free one. With several ranks, rank 0 uses this port and the others
            a free one.
        public_url: the address under which agents reach it; None: `http://host:port`.
        key: the key that opens all rollouts, at least 16 printable ASCII characters. None: the
            environment variable ABUT_GATEWAY_KEY, otherwise a random key, which `key_file` gets.
        key_file: a file to which the key is written, readable only by its owner.
        rewrites: the changes that clients may make to a message of the policy, see
            docs/integrations/agents.md; `()`: none.
        unenforced: "accept" samples freely if a client constrains the form of the answer, such as
            with `response_format`; "refuse" refuses the request, because constrained samples cannot
            be trained exactly.
        sampler: draws the turns if there is no trainer.
        tokenizer: the tokenizer of the sampler's model, with a chat template: a transformers
            tokenizer, its name or its folder.
        config: limits of a rollout without a trainer; fields that concern batches have no effect.
        recorder: records rollouts that end without a trainer: a path, or an object with a method
            `write(rollout, **extra)`.
        idle_s: without a trainer, seconds without a request after which a rollout ends.
        agents_may_end: whether a rollout's own key may end and reward it over HTTP. An agent that
            has only that key could then choose its own reward.
        session_header: without a trainer, the header that names the session of a call; with a
            trainer, each agent has its own.
        max_body_bytes: the largest request body that is accepted. Clients send all images of a
            conversation with each request: 40 screenshots of 1280 x 1024 take 53 MB.

    Attributes:
        key: opens all rollouts of this run.

    Raises:
        ValueError: an argument has an invalid value.
        TypeError: the sampler does not draw one turn for each request.
        TokenizerError: abut cannot use the tokenizer exactly.
        TemplateError: the template cannot be appended to exactly.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        public_url: str | None = None,
        key: str | None = None,
        *,
        key_file: str | os.PathLike[str] | None = None,
        rewrites: Collection[Rewrite] = REWRITES,
        unenforced: Literal["refuse", "accept"] = "refuse",
        sampler: Sampler | None = None,
        tokenizer: Any = None,
        config: RolloutConfig | None = None,
        recorder: Recorder | str | os.PathLike[str] | None = None,
        idle_s: float = 600.0,
        agents_may_end: bool = False,
        session_header: str | None = None,
        max_body_bytes: int = MOST_BODY_BYTES,
    ) -> None:
        if max_body_bytes < 1:
            raise ValueError(f"max_body_bytes={max_body_bytes!r}: must be 1 or more")
        if not 0 <= port < 2**16:
            raise ValueError(f"port={port!r}: must be between 0 and 65535")
        if strange := sorted(set(rewrites) - set(REWRITES)):
            raise ValueError(
                f"rewrites has {strange[0]!r}, which is not one of {', '.join(REWRITES)}"
            )
        if unenforced not in ("refuse", "accept"):
            raise ValueError(f"unenforced={unenforced!r}: must be 'refuse' or 'accept'")
        if public_url is not None:
            address = Address.of(public_url)
            if address.headers:
                raise ValueError(
                    "public_url must not have user:password@, because agents get a key instead"
                )
            public_url = address.url
        key = key or os.environ.get(KEY_VARIABLE) or None
        if key is not None and (len(key) < 16 or not key.isascii() or not key.isprintable()):
            raise ValueError(
                f"the gateway's key (key=, {KEY_VARIABLE}) must have at least 16 characters, all "
                "printable ASCII"
            )
        if session_header is not None:
            session_header = checked_session_header(session_header)
        self._host, self._port, self._public_url = host, port, public_url
        self._key_file = None if key_file is None else Path(key_file)
        standalone = None
        if sampler is not None:
            shared = shared_sampler(sampler, tokenizer, config or RolloutConfig())
            standalone = Standalone(
                shared, recorder=recorder, idle_s=idle_s, session_header=session_header
            )
        elif (tokenizer, config, recorder, session_header) != (None, None, None, None):
            raise ValueError(
                "tokenizer=, config=, recorder= and session_header= are for a gateway that "
                "serves without a trainer\n"
                "hint: pass sampler= too; with a trainer, pass these arguments to "
                "make_rollout_func instead"
            )
        self.registry = Registry(
            key,
            dialects=[kind(rewrites, unenforced) for kind in DIALECTS],
            agents_may_end=agents_may_end,
            standalone=standalone,
            max_body_bytes=max_body_bytes,
        )
        """The live rollouts, which routes and batches use."""
        if session_header is not None:
            self.registry.session_headers.add(session_header)
        self.agents = OpenAgents()
        """The agents that are closed when the gateway stops."""
        self._lock = threading.Lock()
        self._listening: Any = None
        self._url = ""

    def __enter__(self) -> "Gateway":
        """Start to serve without a trainer.

        Raises:
            ValueError: the gateway has no sampler.
            SamplerError: the sampler cannot sample.
        """
        if self.registry.standalone is None:
            raise ValueError(
                "this gateway has no sampler, so only make_rollout_func(gateway=…) can start it\n"
                "hint: to serve without a trainer, use Gateway(sampler=…, tokenizer=…)"
            )
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """End and record the live rollouts, and stop the server."""
        self.stop()

    def endpoint(self, rollout_id: str) -> Endpoint:
        """Return the endpoint of a rollout.

        Without a trainer, the first request opens the rollout.
        """
        base_url = f"{self._url}/r/{rollout_id}/v1"
        key, standalone = self.registry.key_of(rollout_id), self.registry.standalone
        if standalone is None:  # the player of the rollout adds what only its batch knows
            return Endpoint(base_url, key, MODEL, rollout_id)
        count, context = functools.partial(standalone.answered, rollout_id), standalone.bounds()
        return Endpoint(
            base_url,
            key,
            MODEL,
            rollout_id,
            count,
            max_context_tokens=context.max_context_tokens,
        )

    def end(
        self,
        rollout_id: str,
        reward: float | None = None,
        *,
        extras: Mapping[str, Any] | None = None,
        rewards: Mapping[str, float | None] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> Rollout:
        """End a rollout without a trainer, record it, and return it.

        Args:
            rollout_id: the id in its endpoint.
            reward: a finite number; None: the rollout is unscored.
            extras: more values for its record.
            rewards: rewards of its conversations and turns, as in `AgentResult`.
            names: names of its sessions, as in `AgentResult`.

        Raises:
            ValueError: the rollout is not live; a reward is not a finite number, or does not belong
                to anything in the rollout; or a name is not valid.
        """
        body = {"reward": reward, "extras": extras, "rewards": rewards, "names": names}
        standalone = self.registry.standalone
        if standalone is None or self._listening is None:
            raise ValueError(
                "only a gateway that serves without a trainer can end rollouts\n"
                "hint: with Gateway(sampler=…, tokenizer=…) as gateway: …"
            )
        try:
            result = checked_result(body)
            return self.registry.submit(lambda: standalone.end(rollout_id, result)).result()
        except Refusal as refusal:
            raise ValueError(str(refusal)) from None

    @property
    def key(self) -> str:
        """The key of all rollouts of this run, for agents that have one fixed key."""
        return self.registry.key

    @property
    def sampling(self) -> Mapping[str, Any]:
        """The trainer's sampling settings, for agents whose clients must send settings.

        A read-only mapping of `temperature`, `top_p`, `top_k`, `min_p` and `max_tokens` (of a
        completion), as far as the trainer sets them. Empty before the first batch, and without a
        trainer. The gateway samples with these settings, whatever a request says.
        """
        settings = self.registry.settings
        return MappingProxyType({name: settings[name] for name in SAMPLING if name in settings})

    @property
    def base_url(self) -> str:
        """The address for clients that name their rollout themselves; it ends in `/v1`.

        Raises:
            RuntimeError: the gateway has not started.
        """
        if not self._url:
            raise RuntimeError("the gateway has not started; the first batch starts it")
        return f"{self._url}/v1"

    def start(self) -> None:
        """Start the server in a thread and wait until it listens; no effect if it already listens.

        Raises:
            EnvError: the gateway cannot listen on its address.
            MissingExtraError: aiohttp is not installed.
            SamplerError: the gateway's own sampler cannot sample.
        """
        with self._lock:
            if self._listening is not None:
                return
            try:
                from abut.gateway.server.app import make_app
                from abut.gateway.server.connections import serve
            except ImportError as error:
                raise MissingExtraError(
                    "the gateway needs aiohttp: pip install 'abut[gateway]'"
                ) from error
            registry = self.registry
            registry.connections.most = _most_connections()
            loop = registry.loop = DaemonLoop("abut-gateway")
            loop.open()
            try:
                if registry.standalone is not None:
                    loop.submit(registry.standalone.start).result()
                port = 0 if registry.rank else self._port
                app = make_app(registry)
                starts = loop.submit(lambda: serve(app, self._host, port, registry.connections))
                self._listening = starts.result(_START_S)
            except BaseException as error:
                loop.end(_CLOSE_S)
                registry.loop = None
                if not isinstance(error, OSError):
                    raise
                raise EnvError(
                    f"the gateway cannot listen on {self._host}:{port}: {error}\n"
                    "hint: use Gateway(host=…, port=0), which takes a free port of this machine"
                ) from error
            host = f"[{self._host}]" if ":" in self._host else self._host
            if self._host in ("0.0.0.0", "::"):  # all addresses, but not one to connect to
                host = "127.0.0.1"
            self._url = f"http://{host}:{self._listening.port}"
            if self._public_url is not None and not registry.rank:
                self._url = self._public_url
            self._write_key_file()
            # A loop that still runs during interpreter shutdown may crash.
            atexit.register(self.stop)

    def stop(self) -> None:
        """Close agents that have a method `close`, stop listening, and end the live rollouts."""
        self.agents.close()
        with self._lock:
            registry, loop, listening = self.registry, self.registry.loop, self._listening
            self._listening, self._url = None, ""
            atexit.unregister(self.stop)
            if loop is None or listening is None:
                return
            if registry.standalone is not None:
                loop.submit(registry.standalone.stop).result()
            for ledger in list(registry.ledgers.values()):
                loop.submit(functools.partial(_end, ledger)).result(_CLOSE_S)
            loop.submit(listening.cleanup).result(_START_S)
            loop.end(_CLOSE_S)
            registry.loop = None

    def _write_key_file(self) -> None:
        """Write the key to a file that only its owner may read."""
        if self._key_file is None:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        descriptor = os.open(self._key_file, flags, stat.S_IRUSR | stat.S_IWUSR)
        with os.fdopen(descriptor, "w") as file:
            if sys.platform != "win32":
                os.fchmod(
                    file.fileno(), stat.S_IRUSR | stat.S_IWUSR
                )  # a file that was there keeps its mode
            file.write(self.key + "\n")


def _most_connections() -> int | None:
    """Raise the soft limit of open files, and return how many connections clients may have.

    A call in flight needs two files, one at each end, if its agent runs in this process.
    """
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            logger.info(
                "raised the limit of open files of this process to %d, from %d", wanted, soft
            )
            soft = wanted
    return None if soft == resource.RLIM_INFINITY else int(_CONNECTIONS_FRAC * soft)


def key_is_given() -> bool:
    """Return whether the environment variable for the run's key is set."""
    return bool(os.environ.get(KEY_VARIABLE))


async def _end(ledger: Ledger) -> None:
    ledger.end("the gateway has stopped")
