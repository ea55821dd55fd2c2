"""Pickling: what travels to another process is the same there; what cannot says what to send."""

import copy
import functools
import gc
import inspect
import multiprocessing
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

import abut
import abut.audit
import abut.gateway
import abut.gym
import abut.openenv
import abut.samplers.trl_server
import abut.samplers.vllm
from abut.envs.task import RolloutTask
from abut.evaluation import Evaluation
from abut.nemo_gym import NemoGym
from abut.ray import RayPool
from abut.records.viewer.page import Page
from abut.rollout.engine import Engine
from abut.samplers.settings import SamplingSettings
from abut.trl.rollout_func import RolloutFunc
from tests.kit.checkout import DEMO_ASSETS
from tests.kit.data.travel import NEXT, OPENING, Lengths, said_of, there_and_back

METHODS = multiprocessing.get_all_start_methods()
COPIES: list[Callable[[Any], Any]] = [
    copy.copy,
    copy.deepcopy,
    *(
        lambda thing, protocol=protocol: pickle.loads(pickle.dumps(thing, protocol))
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)  # NumPy and tokenizers need 2
    ),
]

# Python warns that a process with threads forks, and torch has some.
forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture
def things(hf_tokenizer: Any, tmp_path: Path) -> Any:
    """A tokenizer with overrides whose file is gone, a processor, a seam with a merge, a turn."""
    file = tmp_path / "tokenizer.json"
    file.write_bytes((DEMO_ASSETS / "tokenizer.json").read_bytes())
    tokenizer = abut.Tokenizer.from_file(file, textual=["<think>"], control=["</think>"])
    file.unlink()
    trajectory = abut.Trajectory(tokenizer)
    trajectory.append_text("hello")
    trajectory.request()
    trajectory.append_sampled([11, 12], [-0.5, -0.25])
    seam = tokenizer.seam("the user i", "n")
    assert seam.merge is not None
    return tokenizer, abut.ChatTemplateProcessor(hf_tokenizer), seam, trajectory.turns[0]


# ---- other processes


@forks
@pytest.mark.parametrize("method", METHODS)
def test_what_is_sent_to_a_process_is_the_same_there(things: Any, method: str) -> None:
    with multiprocessing.get_context(method).Pool(1) as pool:
        said, (tokenizer, processor, *values) = pool.apply(there_and_back, (things,))
    assert said == said_of(*things)
    # It came back to where it is known; an equal one may have been before it, and still be held.
    assert tokenizer is pickle.loads(pickle.dumps(things[0]))
    assert values == [*things[2:]]
    assert said_of(tokenizer, processor, *values) == said


@forks
@pytest.mark.parametrize("method", METHODS)
def test_workers_of_a_data_loader_have_tokenizer_and_processor(things: Any, method: str) -> None:
    data = pytest.importorskip("torch.utils.data")
    dataset = Lengths(things[0], things[1])
    loader = data.DataLoader(dataset, num_workers=1, multiprocessing_context=method)
    assert [int(length) for length in loader] == [dataset[i] for i in range(len(dataset))]


def test_a_closure_travels_by_cloudpickle(things: Any) -> None:
    tokenizer, processor, seam, turn = things

    def count(messages: Any) -> Any:
        tokens = tokenizer.encode_parts(processor.opening(messages))
        return tokens.tolist(), repr(seam), turn.end

    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer)())"
    sent = cloudpickle.dumps(functools.partial(count, OPENING))
    done = subprocess.run(
        [sys.executable, "-c", program], input=sent, capture_output=True, check=True, timeout=300
    )
    assert done.stdout.decode().strip() == repr(count(OPENING))


# ---- tokenizers


def test_a_process_has_one_tokenizer_for_all_pickles_of_it() -> None:
    text = (DEMO_ASSETS / "tokenizer.json").read_text()
    tokenizer = abut.Tokenizer.from_str(text, textual=["<think>", "</think>"])
    sent = pickle.dumps(tokenizer)
    assert pickle.loads(sent) is tokenizer
    alive = weakref.ref(tokenizer)
    del tokenizer
    gc.collect()
    assert alive() is None  # nothing keeps it
    one = pickle.loads(sent)
    assert pickle.loads(sent) is one
    assert one.profile()["textual_tokens"] == ["<think>", "</think>"]
    other = abut.Tokenizer.from_str(text, textual=["</think>", "<think>"])
    assert pickle.loads(pickle.dumps(other)) is one  # the order of the overrides means nothing
    assert pickle.loads(pickle.dumps(abut.Tokenizer.from_str(text))) is not one


def test_a_broken_pickle_of_a_tokenizer_is_an_error_of_ours() -> None:
    sent = pickle.dumps(abut.Tokenizer.from_str((DEMO_ASSETS / "tokenizer.json").read_text()))
    with pytest.raises(abut.TokenizerError):
        pickle.loads(sent.replace(b'"vocab"', b'"vocap"'))


def test_a_tokenizer_has_no_subclasses() -> None:
    with pytest.raises(TypeError, match="not an acceptable base type"):
        type("Mine", (abut.Tokenizer,), {})


# ---- processors


class Shouting(abut.ChatTemplateProcessor):
    """One of a user, with something of its own."""

    mark = ""

    def increment(self, messages: Any) -> Any:
        return [*super().increment(messages), abut.Scaffold(self.mark)]


@pytest.mark.parametrize("copied", COPIES)
def test_a_processor_of_a_subclass_with_a_template_of_its_own_travels(
    hf_tokenizer: Any, copied: Callable[[Any], Any]
) -> None:
    def search(query: str) -> str:
        """Search.

        Args:
            query: what for.
        """
        return query

    template = "{{ tools | length }}" + hf_tokenizer.chat_template
    processor = Shouting(hf_tokenizer, tools=[search], chat_template=template, note="x")
    processor = processor.with_stop_token_ids([7])
    processor.mark = "!"
    other = copied(processor)
    assert (type(other), other.mark, other.stop_token_ids) == (
        Shouting,
        "!",
        processor.stop_token_ids,
    )
    assert "".join(other.opening(OPENING)).startswith("1<|im_start|>")
    assert other.opening(OPENING) == processor.opening(OPENING)
    assert other.increment(NEXT) == processor.increment(NEXT)
    assert (other.report, other.thinking) == (processor.report, processor.thinking)
    call = '<tool_call>\n{"name": "search", "arguments": {"query": "a"}}\n</tool_call>'
    assert other.parse_tool_calls(call) == processor.parse_tool_calls(call)
    assert other.parse_tool_calls(call).calls[0].arguments == {"query": "a"}


def test_a_processor_takes_its_proofs_along_and_no_prompt(processor: Any) -> None:
    processor.opening([{"role": "user", "content": "A secret of the user."}])
    processor.increment(NEXT)
    sent = pickle.dumps(processor)
    assert b"A secret" not in sent
    assert pickle.loads(sent).knows(NEXT)


# ---- values


def values() -> dict[str, Any]:
    """One of each public class that travels, in the state in which it says most."""
    tokenizer = abut.Tokenizer.from_file(DEMO_ASSETS / "tokenizer.json")
    calls = [([1], [2], [-0.5]), ([1, 2, 5], [3], [-0.5]), ([1, 9, 4], [5], [-0.5])]
    stitched = abut.stitch(calls, on_drift="split", tokenizer=tokenizer)
    seam = tokenizer.seam("the user i", "n")
    rollout = abut.Rollout("id", 0, columns=stitched.chains[0], messages=[*NEXT])
    ids = np.arange(3)
    return {
        "Seam": seam,
        "Merge": seam.merge,
        "Transition": stitched.transitions[-1],
        "Stitched": stitched,
        "Columns": stitched.chains[0],
        "Content": abut.Content("a"),
        "Image": abut.Image.of(np.zeros((2, 3, 3), np.uint8)),
        "Scaffold": abut.Scaffold("a"),
        "Evaluation": Evaluation.of([rollout], [{"prompt": "p"}], 1),
        "Rollout": rollout,
        "RolloutConfig": abut.RolloutConfig(max_turns=3),
        "RolloutTask": RolloutTask(0, "id", abut.gym.GymEnv(dict), NEXT, "seed", 1),
        "GymEnv": abut.gym.GymEnv(dict),
        "Sample": abut.Sample(ids, ids.astype(np.float32), "stop"),
        "SampleRequest": abut.samplers.SampleRequest(ids, 3, (1,), 0, "id", 0),
        "SamplingSettings": SamplingSettings(temperature=0.5),
        "ScriptedSampler": abut.samplers.ScriptedSampler(len),
        "JsonlRecorder": abut.records.JsonlRecorder("r.jsonl"),
        "StopReason": abut.rollout.rollout.StopReason.ENV_DONE,
        "ToolCall": abut.ToolCall("f", {}),
        "MalformedCall": abut.tool_calls.MalformedCall(0, 1, "x", "y"),
        "ParsedCalls": abut.parse_tool_calls("x", format="hermes"),
        "AgentResult": abut.AgentResult(0.5, {"moves": 2}),
        "Endpoint": abut.Endpoint("http://host/v1", "key", "policy", "id"),
        "tool_env": abut.tool_env([search], reward=len),
        "Docker": abut.openenv.Docker("image"),
        "Serve": abut.openenv.Serve("app:app"),
        "Page": Page("<!doctype html>", 1, ["no tokenizer"]),
        "Audit": abut.audit.audit(str(DEMO_ASSETS / "tokenizer.json")),
    }


def search(query: str) -> str:
    """Search.

    Args:
        query: what for.
    """
    return query


@pytest.mark.parametrize("copied", COPIES)
def test_values_are_the_same_in_another_process(copied: Callable[[Any], Any]) -> None:
    for name, value in values().items():
        other = copied(value)
        assert type(other) is type(value), name
        assert shown(other) == shown(value), name


def shown(value: Any) -> Any:
    return vars(value) if type(value).__repr__ is object.__repr__ else repr(value)


def test_stitched_calls_keep_their_rows_and_verdicts() -> None:
    stitched = values()["Stitched"]
    other = pickle.loads(pickle.dumps(stitched))
    assert [repr(one) for one in other.transitions] == [repr(one) for one in stitched.transitions]
    texts = [(one.left, one.right) for one in other.transitions]
    assert texts == [(one.left, one.right) for one in stitched.transitions] != [(None, None)] * 3
    assert other.dropped == stitched.dropped
    for row, was in zip(other.chains, stitched.chains, strict=True):
        np.testing.assert_array_equal(row.completion_ids, was.completion_ids)
        np.testing.assert_array_equal(row.logprobs, was.logprobs)


@abut.agent
def of_this_module(endpoint: Any) -> float:
    return 1.0


@pytest.mark.parametrize("there_and_back", COPIES)
def test_an_agent_of_a_module_is_found_by_its_name(there_and_back: Any) -> None:
    assert there_and_back(of_this_module) is of_this_module


def test_an_agent_that_no_import_finds_is_sent_by_its_function() -> None:
    reward = 0.5

    @abut.agent
    def local(endpoint: Any) -> float:
        return reward

    other = pickle.loads(cloudpickle.dumps(local))
    assert (other(None), other.__name__, other.is_async) == (0.5, "local", False)


# ---- what stays

STAYS = {
    Engine: (
        "Engine cannot be pickled: it holds threads, event loops and a sampler of this "
        "process\nhint: send its tokenizer, processor and config, and make the engine there"
    ),
    RolloutFunc: (
        "RolloutFunc cannot be pickled: it uses the engine and the environments of this "
        "process\nhint: call make_rollout_func in the process that trains"
    ),
    NemoGym: (
        "NemoGym cannot be pickled: it holds connections of this process\nhint: send its "
        "arguments, and make the NemoGym in the process that trains"
    ),
    RayPool: (
        "RayPool cannot be pickled: it holds actors on a cluster and an event loop of this "
        "process\nhint: make a pool in each process: RayPool(env, size=…, address=…)"
    ),
    abut.samplers.vllm.VLLMServerSampler: (
        "VLLMServerSampler cannot be pickled: it holds connections of this process\nhint: send "
        "the sampler's arguments, and create the sampler in the other process"
    ),
    abut.samplers.trl_server.TRLServerSampler: (
        "TRLServerSampler cannot be pickled: it holds connections of this process\nhint: send "
        "the sampler's arguments, and create the sampler in the other process"
    ),
    abut.samplers.vllm.VLLMColocateSampler: (
        "VLLMColocateSampler cannot be pickled: its engine runs in this process\nhint: create "
        "it in the process of the LLM; VLLMServerSampler works from any process"
    ),
    abut.records.ParquetRecorder: (
        "ParquetRecorder cannot be pickled: it holds unwritten rollouts\nhint: create one with "
        "the same path in the other process"
    ),
    abut.gateway.Gateway: (
        "Gateway cannot be pickled: it holds a server, connections and rollouts of this "
        "process\nhint: make the gateway in the process that trains, and give other processes "
        "its address and key"
    ),
    abut.openenv.OpenEnv: (
        "OpenEnv cannot be pickled: it holds sessions on servers and an event loop of this "
        "process\nhint: start the servers once, and create an OpenEnv with their addresses in "
        "the other process"
    ),
}


@pytest.mark.parametrize("copied", COPIES)
def test_what_stays_in_its_process_says_what_to_send(copied: Callable[[Any], Any]) -> None:
    for cls, text in STAYS.items():
        with pytest.raises(TypeError) as raised:
            copied(object.__new__(cls))
        assert str(raised.value) == text


def test_a_model_in_process_stays() -> None:
    pytest.importorskip("torch")
    from abut.samplers.transformers import TransformersSampler

    with pytest.raises(TypeError) as raised:
        pickle.dumps(object.__new__(TransformersSampler))
    assert str(raised.value) == (
        "TransformersSampler cannot be pickled: it holds a model of this process\nhint: send "
        "the model's name, and create the model and the sampler in the other process"
    )


@pytest.mark.parametrize("copied", COPIES)
def test_a_trajectory_stays_and_is_forked_instead(
    tokenizer: Any, copied: Callable[[Any], Any]
) -> None:
    with pytest.raises(TypeError) as raised:
        copied(abut.Trajectory(tokenizer))
    assert str(raised.value) == (
        "a Trajectory cannot be pickled: it still grows, and would take its tokenizer along\n"
        "hint: send trajectory.columns(), or its texts and the samples with their logprobs; "
        "within a process, trajectory.fork(len(trajectory)) copies it"
    )


def test_each_public_class_travels_or_says_why_not() -> None:
    tested = {"ChatTemplateProcessor", "Tokenizer", "Trajectory", "Turn", *values()}
    tested |= {cls.__name__ for cls in STAYS}
    named = [(module, name) for module in (abut, abut.openenv) for name in module.__all__]
    named += [
        (abut.nemo_gym, "NemoGym"),
        (abut.ray, "RayPool"),
        (abut.gym, "GymEnv"),
        (abut.audit, "Audit"),
        (abut.gateway, "Gateway"),
    ]
    public = {name: getattr(module, name) for module, name in named}
    untested = [
        name
        for name, cls in public.items()
        if inspect.isclass(cls)
        and name not in tested
        and not getattr(cls, "_is_protocol", False)
        and not issubclass(cls, Exception)
    ]
    assert untested == []
