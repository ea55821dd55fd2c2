"""Real NeMo Gym servers, rows that a small model can hold, and a policy that plays them."""

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from abut.samplers.sampler import SampleRequest
from tests.kit.checkout import KIT
from tests.kit.servers.free_port import free_port

ENVIRONMENTS = os.environ.get("ABUT_NEMO_GYM")
"""A folder of environments, one for each version: `0.4.0`, `0.7.0`."""
_READY_S = 120

MODEL = "responses_api_models/vllm_model/configs/vllm_model_for_training.yaml"
AGENTS = {
    "example_multi_step": "example_multi_step_simple_agent",
    "example_session_state_mgmt": "example_session_state_mgmt_simple_agent",
    "workplace_assistant": "workplace_assistant_simple_agent",
    "mcqa": "mcqa_simple_agent",
    "example_multi_turn_gymnasium": "example_multi_turn_gymnasium_agent",
    "example_tool_call_multireward": "example_tool_call_multireward_simple_agent",
}
"""The agent of each environment."""


@dataclass
class Gym:
    """Servers that run."""

    head_url: str
    site: Path
    process: "subprocess.Popen[str]"
    folder: Path
    pids: dict[str, int]
    """Of the servers that have a process of their own."""

    def rows(self, environment: str) -> list[dict[str, Any]]:
        """The example rows of an environment, without an agent's name, cut to be short."""
        places = [
            self.site / "resources_servers" / environment / "data" / "example.jsonl",
            self.site / "environments" / environment / "data" / "example.jsonl",
        ]
        path = next(place for place in places if place.exists())
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        # Attention over the longest takes the time of all the others.
        shortest = sorted(rows, key=lambda row: len(json.dumps(row)))[:3]
        return [_short(environment, row) for row in shortest]

    def file(self, environment: str, rows: Sequence[Any] | None = None) -> Path:
        """Rows of an environment as a file of JSON lines."""
        path = self.folder / f"{environment}.jsonl"
        rows = self.rows(environment) if rows is None else rows
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        return path


def versions() -> list[str]:
    """The versions of NeMo Gym that there are environments of."""
    found = Path(ENVIRONMENTS or os.devnull).glob("*/bin/python")
    return sorted(path.parents[1].name for path in found)


@contextmanager
def gym_servers(
    version: str,
    base_url: str,
    key: str,
    folder: Path,
    *,
    environments: Sequence[str] = tuple(AGENTS),
    more_configs: Sequence[str] = (),
    model: str = MODEL,
    **asked: Any,
) -> Iterator[Gym]:
    """Servers of one version, which ask the policy at `base_url`; they end with the block."""
    environment = Path(ENVIRONMENTS or "") / version
    (site,) = environment.glob("lib/python3*/site-packages")
    port = asked.pop("port", None) or free_port()
    asked = {
        "head": port,
        "base_url": base_url,
        "key": key,
        "configs": [*(_config(site, name) for name in environments), *more_configs, model],
        **asked,
    }
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "gym.log"
    python, launcher = environment / "bin" / "python", KIT / "servers" / "nemo_gym_servers.py"
    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            [str(python), str(launcher), json.dumps(asked)],
            cwd=folder,
            env={k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
            | {"RAY_USAGE_STATS_ENABLED": "0"},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    rest = threading.Thread(target=_log, args=(process.stdout, log), daemon=True)
    try:
        left, pids = {"ready", *asked.get("alone", ())}, {}
        for line in process.stdout:
            name, pid = line.removeprefix("alone ").split()
            pids[name] = int(pid)
            left.discard(name)
            if not left:
                break
        else:
            raise AssertionError(f"no servers: {log.read_text(encoding='utf-8')[-3000:]}")
        rest.start()  # servers print, and one whose pipe is full stands still
        yield Gym(f"http://{asked.get('host', '127.0.0.1')}:{port}", site, process, folder, pids)
    finally:
        process.terminate()
        try:
            process.wait(_READY_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if rest.ident is not None:
            rest.join(_READY_S)
        process.stdout.close()


def _log(said: IO[str], log: Path) -> None:
    with log.open("a", encoding="utf-8") as file:
        for line in said:
            file.write(line)


def _config(site: Path, name: str) -> str:
    for place in (
        f"resources_servers/{name}/configs/{name}.yaml",
        f"environments/{name}/config.yaml",
    ):
        if (site / place).exists():
            return place
    raise FileNotFoundError(name)


def _short(environment: str, row: dict[str, Any]) -> dict[str, Any]:
    """The same row with fewer tools and a shorter system message."""
    params = row["responses_create_params"]
    if environment == "workplace_assistant":
        params["tools"] = params["tools"][:1]
    if environment == "example_multi_step":
        system = params["input"][0]
        lines = system["content"].splitlines()
        terms = [line for line in lines if line.startswith("The term")]
        system["content"] = "\n".join(terms[:3])
    return row


def a_call(tool: str, **arguments: Any) -> str:
    call = json.dumps({"name": tool, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


def script_of(prompt: str) -> Sequence[str]:
    """The turns of a rollout, by what its prompt is about."""
    if found := re.search(r"add (\d+) then add (\d+) then get", prompt):
        first, second = map(int, found.groups())
        both = [a_call("increment_counter", count=count) for count in (first, second)]
        return ["\n".join(both), a_call("get_counter_value"), "That is the count."]
    if "get_synonym_value" in prompt:
        return [
            f"<think>\nwhich ones?\n</think>\n\n{a_call('get_synonym_value', synonym='Blazing')}",
            a_call("extract_synonym_values", synonym_values=[711, 407]),
            "Extracted.",
        ]
    if "company_directory_find_email_address" in prompt:
        call = a_call("company_directory_find_email_address", name="carlos")
        return [f"I look him up.{call}", "There he is."]
    if "get_weather" in prompt:
        city = re.search(r"in (San Francisco|New York|\w+)", prompt.rpartition("user\n")[2])
        return [a_call("get_weather", city=city[1] if city else "Paris"), "Cold."]
    if "boxed" in prompt:
        return ["I think \\boxed{A}"]
    return ["Paris.", "Many.", "The Eiffel tower: 20, 42."]


class Plays:
    """Says the script of a rollout, turn by turn, where `whom` says that it is to.

    Args:
        tokenizer: of the model.
        close: the token that ends a turn.
        whom: whether a rollout is played by its script, by its id.
    """

    def __init__(self, tokenizer: Any, close: int, whom: Any = lambda rollout_id: True) -> None:
        self._tokenizer, self._close, self._whom = tokenizer, close, whom

    def __call__(self, request: SampleRequest) -> list[int] | None:
        if not self._whom(request.rollout_id):
            return None
        prompt = self._tokenizer.decode(request.prompt_ids.tolist())
        script = script_of(prompt)
        turn = min(request.turn, len(script) - 1)
        return [*self._tokenizer.encode(script[turn]).tolist(), self._close]
