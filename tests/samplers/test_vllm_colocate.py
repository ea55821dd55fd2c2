"""vLLM in this process, against an engine that only counts; tests/real_vllm has the real one."""

import asyncio
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from abut.errors import RolloutError, SamplerError
from abut.samplers.in_process import StreamSampler
from abut.samplers.sampler import BatchSampler, Sampler, SampleRequest
from abut.samplers.vllm import VLLMColocateSampler
from abut.samplers.vllm_colocate import Alone
from abut.trl.trainer_sampler import sampler_of
from tests.kit.stage import fake_vllm
from tests.kit.stage.fake_vllm import logprob_of, token_of
from tests.kit.stage.rollouts import Played, Stage, Talk, check_exact, env
from tests.kit.stage.streams import Ask, ask, kept_answers, served
from tests.kit.training.ranks import run_ranks


@pytest.fixture(autouse=True)
def _vllm(monkeypatch: Any) -> None:
    modules: dict[str, Any] = {}
    fake_vllm.install(modules)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


def request(rollout_id: str = "r0", **changes: Any) -> SampleRequest:
    fields = {
        "prompt_ids": np.arange(5, 9),
        "max_tokens": 8,
        "stop_token_ids": (),
        "seed": 7,
        "rollout_id": rollout_id,
        "turn": 0,
    }
    return SampleRequest(**fields | changes)


def error_of(llm: Any, *requests: SampleRequest, **settings: Any) -> str:
    with pytest.raises(SamplerError) as raised:
        ask(VLLMColocateSampler(llm, **settings), *requests or [request()])
    assert llm.llm_engine.running == {}
    return str(raised.value)


@pytest.fixture
def played(stage: Stage, monkeypatch: Any) -> Any:
    """Plays rollouts with a fake engine; keeps each sample beside its request."""
    calls = kept_answers(monkeypatch)

    def play(llm: Any, *envs: Any, **options: Any) -> Played:
        sampler: Any = VLLMColocateSampler(llm)
        sampler.calls = calls
        return stage.play(*envs, sampler=sampler, **{"max_turn_tokens": 6} | options)

    return play


# ---- samples


def test_a_sample_is_what_the_engine_drew() -> None:
    llm = fake_vllm.llm()
    stop = token_of(7, 1, 2)
    to_the_end, stopped = ask(
        VLLMColocateSampler(llm), request(), request("r1", stop_token_ids=(stop, 9))
    )
    assert to_the_end.ids.tolist() == [token_of(7, 0, place) for place in range(8)]
    assert to_the_end.finish_reason == "length"
    assert stopped.ids.tolist() == [token_of(7, 1, 0), token_of(7, 1, 1), stop]
    assert stopped.finish_reason == "stop"
    for sample in (to_the_end, stopped):
        right = np.asarray([logprob_of(id_) for id_ in sample.ids], np.float32)
        assert sample.logprobs.tolist() == right.tolist()
        assert (sample.ids.dtype, sample.logprobs.dtype) == (np.int64, np.float32)


def test_it_is_a_stream_sampler_and_no_other() -> None:
    sampler = VLLMColocateSampler(fake_vllm.llm())
    kinds = [isinstance(sampler, kind) for kind in (Sampler, BatchSampler, StreamSampler)]
    assert kinds == [False, False, True]


def test_all_settings_are_said() -> None:
    llm = fake_vllm.llm()
    sampler = VLLMColocateSampler(
        llm,
        temperature=0.7,
        top_k=None,
        min_p=0.1,
        generation_kwargs={"min_tokens": 2, "top_p": 0.9, "stop": ["x"]},
    )
    ask(sampler, request(stop_token_ids=(29,)))
    assert llm.llm_engine.params == [
        fake_vllm.SamplingParams(
            temperature=0.7,
            top_k=0,
            top_p=0.9,
            min_p=0.1,
            repetition_penalty=1.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            max_tokens=8,
            seed=7,
            stop_token_ids=[29],
            logprobs=0,
            detokenize=True,
            skip_special_tokens=False,
            output_kind="final only",
            min_tokens=2,
            stop=["x"],
        )
    ]


def test_a_stop_string_is_named() -> None:
    def stopped(output: Any) -> None:
        output.outputs[0].finish_reason, output.outputs[0].stop_reason = "stop", "</a>"

    (sample,) = ask(VLLMColocateSampler(fake_vllm.llm(change=stopped)), request())
    assert (sample.finish_reason, sample.stop_string) == ("stop", "</a>")


def test_the_engines_length_bounds_the_sample() -> None:
    sampler = VLLMColocateSampler(fake_vllm.llm(max_model_len=9))
    assert sampler.max_context_tokens == 9
    (sample,) = ask(sampler, request())
    assert len(sample.ids) == 5


def test_a_turn_joins_those_that_run() -> None:
    llm = fake_vllm.llm(step_s=0.001)
    ended: list[str] = []

    async def play(ask: Ask) -> None:
        async def one(rollout_id: str, turns: int, max_tokens: int) -> None:
            for turn in range(turns):
                await ask(request(rollout_id, turn=turn, max_tokens=max_tokens))
            ended.append(rollout_id)

        await asyncio.gather(one("long", 1, 500), one("short", 3, 2))

    served(VLLMColocateSampler(llm), play)
    assert ended == ["short", "long"]
    assert llm.llm_engine.steps == 500, "no turn had the engine for itself"


# ---- rollouts


def test_rollouts_are_exact(played: Any) -> None:
    llm = fake_vllm.llm()
    told = played(llm, *[env(Talk, turns=1 + k % 5) for k in range(32)])
    assert [rollout.error for rollout in told.rollouts] == [None] * 32
    for rollout in told.rollouts:
        check_exact(rollout.columns, told.calls(rollout))
    assert llm.llm_engine.threads == {threading.current_thread().name}
    assert llm.llm_engine.running == {}


def test_no_more_than_max_requests_are_out(played: Any, monkeypatch: Any) -> None:
    llm, most = fake_vllm.llm(), [0]
    step = llm.llm_engine.step

    def counted() -> Any:
        most[0] = max(most[0], len(llm.llm_engine.running))
        return step()

    monkeypatch.setattr(llm.llm_engine, "step", counted)
    played(llm, *[Talk] * 12, max_requests=3)
    assert most == [3]


def test_nothing_turns_while_only_environments_work(played: Any, monkeypatch: Any) -> None:
    class Slow(Talk):
        def step(self, action: str) -> Any:
            time.sleep(0.1)
            return super().step(action)

    rounds, exchange = [0], Alone.exchange

    def counted(ranks: Alone, news: Any) -> Any:
        rounds[0] += 1
        return exchange(ranks, news)

    monkeypatch.setattr(Alone, "exchange", counted)
    llm = fake_vllm.llm()
    played(llm, Slow)
    assert rounds[0] <= llm.llm_engine.steps + 2


def test_a_turn_that_takes_too_long_is_aborted_and_the_others_go_on(played: Any) -> None:
    llm = fake_vllm.llm(max_model_len=10**6, step_s=0.001)

    async def play(ask: Ask) -> list[Any]:
        asked = request("other", max_tokens=300), request("slow", max_tokens=10**5)
        other, slow = (asyncio.ensure_future(ask(one)) for one in asked)
        while "abut-0-2" not in llm.llm_engine.running:
            await asyncio.sleep(0.001)
        slow.cancel()
        return await asyncio.gather(other, slow, return_exceptions=True)

    other, slow = served(VLLMColocateSampler(llm), play)
    assert isinstance(slow, asyncio.CancelledError)
    assert other.ids.tolist() == [token_of(7, 0, place) for place in range(300)]
    assert llm.llm_engine.aborted == ["abut-0-2"]
    late = {"max_turn_tokens": None, "completion": 10**5, "turn_timeout_s": 0.1, "retries": 0}
    told = played(llm, Talk, max_failed_frac=1.0, **late)
    assert told.one.error == "EnvError: turn 0 was not sampled within turn_timeout_s=0.1"
    assert llm.llm_engine.running == {}


def test_a_batch_that_fails_leaves_nothing_in_the_engine(played: Any, no_thread_stays: Any) -> None:
    class Broken(Talk):
        def step(self, action: str) -> Any:
            raise ValueError("boom")

    llm = fake_vllm.llm(max_model_len=10**6)
    with pytest.raises(RolloutError, match="boom"):
        played(llm, Broken, Talk, on_failure="raise", retries=0, max_turn_tokens=None, completion=9)
    assert llm.llm_engine.running == {}


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()], ids=repr)
def test_an_engine_that_fails_ends_the_batch(
    played: Any, monkeypatch: Any, no_thread_stays: Any, error: BaseException
) -> None:
    llm = fake_vllm.llm()

    def fail() -> Any:
        raise error

    monkeypatch.setattr(llm.llm_engine, "step", fail)
    with pytest.raises(type(error)) as raised:
        played(llm, *[Talk] * 4)
    assert raised.value is error
    assert llm.llm_engine.running == {}
    assert len(llm.llm_engine.aborted) == len(llm.llm_engine.admitted) > 0


def test_an_engine_that_died_is_named_though_it_cannot_abort(
    played: Any, monkeypatch: Any, caplog: Any
) -> None:
    llm = fake_vllm.llm()

    def fail(text: str) -> Any:
        raise RuntimeError(text)

    monkeypatch.setattr(llm.llm_engine, "step", lambda: fail("out of memory"))
    monkeypatch.setattr(llm.llm_engine, "abort_request", lambda names: fail("the engine is dead"))
    with pytest.raises(RuntimeError) as raised:
        played(llm, *[Talk] * 4)
    assert str(raised.value) == "out of memory"
    assert caplog.messages == ["vLLM cannot abort the requests of a batch that failed"]
    assert "the engine is dead" in caplog.text


# ---- what is refused


def test_raw_logprobs_are_refused() -> None:
    with pytest.raises(ValueError, match="logprobs_mode") as raised:
        VLLMColocateSampler(fake_vllm.llm(logprobs_mode="raw_logprobs"))
    assert str(raised.value) == (
        "the engine returns logprobs from before temperature and filters, because its "
        "logprobs_mode is 'raw_logprobs'\nhint: LLM(…, logprobs_mode='processed_logprobs')"
    )


@pytest.mark.parametrize("name", ["response_format", "vllm_xargs", "n", "seed"])
def test_settings_that_are_not_those_of_a_sample_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="this sampler does not know this setting"):
        VLLMColocateSampler(fake_vllm.llm(), generation_kwargs={name: 1})


def test_a_setting_that_this_vllm_does_not_know_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="thinking_token_budget") as raised:
        VLLMColocateSampler(fake_vllm.llm(), generation_kwargs={"thinking_token_budget": 5})
    assert str(raised.value).startswith("vLLM does not accept these settings: ")
    assert str(raised.value).endswith(
        "\nhint: remove the setting from generation_kwargs that this version of vLLM does not know"
    )


def test_a_prompt_that_is_too_long_is_an_error() -> None:
    assert error_of(fake_vllm.llm(max_model_len=4)) == (
        "rollout r0, turn 0: the prompt has 4 tokens, but the engine holds only 4, sample "
        "included\nhint: shorten the prompt, or GRPOConfig(vllm_max_model_length=…)"
    )


def test_an_id_outside_the_vocabulary_is_an_error() -> None:
    assert error_of(fake_vllm.llm(), request(prompt_ids=np.asarray([5, 99_999]))) == (
        "rollout r0, turn 0: vLLM refused the request: Token id 99999 is out of vocabulary\n"
        "hint: use the same vocabulary for the served model and the rollouts' tokenizer"
    )


def _shorter_prompt(output: Any) -> None:
    output.prompt_token_ids = [5, 6]


def _aborted(output: Any) -> None:
    output.outputs[0].finish_reason = "abort"


def _no_logprobs(output: Any) -> None:
    output.outputs[0].logprobs = None


def _two(output: Any) -> None:
    output.outputs *= 2


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            _shorter_prompt,
            "the engine received 2 prompt tokens, which differ from the 4 of the request\n"
            "hint: look for something between abut and the engine that truncates or rewrites "
            "prompts",
        ),
        (_aborted, "finish_reason is 'abort', expected 'stop' or 'length'"),
        (_no_logprobs, "8 ids came with 0 logprobs"),
        (_two, "vLLM drew 2 samples, but 1 was requested"),
    ],
)
def test_a_wrong_answer_stops_training_and_is_named(change: Any, text: str) -> None:
    assert error_of(fake_vllm.llm(change=change)) == f"rollout r0, turn 0: {text}"


# ---- the trainer's engine


class Generation:
    """`VLLMGeneration` of TRL in colocate mode; notes what is done with it."""

    def __init__(self, *, sleeps: bool, ranks: int = 1) -> None:
        self.done: list[str] = []
        self.llm = fake_vllm.llm()
        self.llm.wake_up = lambda tags: self.done.append(f"wake {tags}")
        self.llm.sleep = lambda level: self.done.append(f"sleep {level}")
        self.enable_sleep_mode = sleeps
        self.tensor_parallel_size = ranks
        self._llm_weights_sleeping = sleeps
        self.accelerator = SimpleNamespace(wait_for_everyone=lambda: self.done.append("wait"))

    def sync_weights(self) -> None:
        self._llm_weights_sleeping = False
        self.done.append("sync")


def colocated(generation: Generation, trl: tuple[int, ...] = (1, 16, 0), **args: Any) -> Any:
    trainer = SimpleNamespace(
        use_vllm=True,
        vllm_mode="colocate",
        vllm_generation=generation,
        args=SimpleNamespace(**{"generation_kwargs": {"min_tokens": 2}} | args),
        temperature=0.7,
        top_k=0,
        top_p=1.0,
        min_p=None,
        repetition_penalty=1.0,
    )
    return sampler_of(trainer, None, trl)


def test_the_trainers_engine_samples_with_the_trainers_settings() -> None:
    generation = Generation(sleeps=False)
    ask(colocated(generation, vllm_structured_outputs_regex="a+"), request())
    (params,) = generation.llm.llm_engine.params
    assert (params.temperature, params.min_tokens) == (0.7, 2)
    assert params.structured_outputs == SimpleNamespace(regex="a+")
    assert generation.done == []


def test_an_engine_that_sleeps_is_waked_once_for_a_batch() -> None:
    generation = Generation(sleeps=True)
    sampler = colocated(generation)
    generation.sync_weights()  # as TRL does it before the first batch of a step
    for _ in range(2):
        ask(sampler, *[request(f"r{k}") for k in range(5)])
    batch = ["wake ['kv_cache']", "sleep 2"]
    assert generation.done == ["sync", *batch, "sync", *batch], "sleep has dropped the weights"


def test_an_engine_goes_to_sleep_after_a_batch_that_failed() -> None:
    generation = Generation(sleeps=True)
    with pytest.raises(SamplerError, match="out of vocabulary"):
        ask(colocated(generation), request(prompt_ids=np.asarray([99_999])))
    assert generation.done[-1] == "sleep 2"
    assert generation._llm_weights_sleeping


def test_training_has_ended_everywhere_before_a_group_begins() -> None:
    generation = Generation(sleeps=False, ranks=2)
    ask(colocated(generation), request())
    assert generation.done == ["wait"]


def test_an_old_trl_that_wakes_an_engine_with_old_weights_is_refused() -> None:
    with pytest.raises(ValueError, match="sleep") as raised:
        colocated(Generation(sleeps=True), (1, 9, 0))
    assert str(raised.value) == (
        "vllm_enable_sleep_mode=True with TRL 1.9.0: after a sleep the engine would sample with "
        "the weights it was started with\n"
        "hint: pip install 'trl>=1.10', or set vllm_enable_sleep_mode=False"
    )
    colocated(Generation(sleeps=False), (1, 9, 0))


# ---- ranks of a tensor-parallel group: processes over gloo


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: Any) -> list[dict[str, Any]]:
    """What two ranks say of each batch that they played together."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("ranks")
    return run_ranks("colocated", folder, codes=(0, 3), timeout_s=600)


SHARED = (
    "even",
    "one rank has slow environments",
    "one rank has a rollout that fails",
    "after a batch that failed",
    "one rank gives a turn up",
    "one rank cannot step",
)


@pytest.mark.parametrize("name", SHARED)
def test_all_ranks_admit_the_same_turns_in_the_same_order(
    ranks: list[dict[str, Any]], name: str
) -> None:
    first, second = (rank[name] for rank in ranks)
    assert first["admitted"] == second["admitted"] != []
    assert first["aborted"] == second["aborted"]
    assert first["running"] == second["running"] == []
    admitted = {request_id.split("-")[1] for request_id, _ in first["admitted"]}
    assert admitted == {"0", "1"}, "each rank has the turns of both"


@pytest.mark.parametrize("name", ["even", "after a batch that failed"])
def test_each_rank_has_the_exact_rollouts_of_its_own(
    ranks: list[dict[str, Any]], name: str
) -> None:
    for rank in ranks:
        assert (rank[name]["error"], rank[name]["failed"]) == (None, [])
    assert ranks[0][name]["steps"] == ranks[1][name]["steps"]


def test_a_rank_with_slow_environments_holds_up_nobodys_turns(ranks: list[dict[str, Any]]) -> None:
    told = ranks[0]["one rank has slow environments"]
    assert (told["error"], told["failed"]) == (None, [])
    order = [request_id.split("-")[1] for request_id, _ in told["admitted"]]
    # All 4 rollouts of 5 turns end while the other rank's 2 wait in their second step.
    assert order.count("0") == 20
    assert order.count("1") == 8
    last_of_the_fast = len(order) - order[::-1].index("0")
    assert order[:last_of_the_fast].count("1") <= 4


def test_a_failed_batch_of_one_rank_ends_those_of_all(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["one rank has a rollout that fails"]["error"] for rank in ranks)
    own = (
        "RolloutError: rollout r0 failed after 1 attempts: EnvError: Broken.step raised "
        "ValueError: boom"
    )
    assert second == own
    assert first == (
        f"SamplerError: rank 1 of the tensor-parallel group failed, so the other ranks stop: {own}"
    )


def test_an_engine_that_fails_on_one_rank_ends_the_batch_on_all(
    ranks: list[dict[str, Any]],
) -> None:
    first, second = (rank["one rank cannot step"]["error"] for rank in ranks)
    assert second == "RuntimeError: out of memory"
    assert first.endswith("so the other ranks stop: RuntimeError: out of memory")


def test_a_turn_that_one_rank_gives_up_is_aborted_on_all(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["one rank gives a turn up"] for rank in ranks)
    assert first["aborted"] == ["abut-1-1"]
    assert first["failed"] == []
    assert second["failed"] == ["EnvError: turn 0 was not sampled within turn_timeout_s=6"]


def test_a_rank_that_dies_is_noticed(ranks: list[dict[str, Any]]) -> None:
    told = ranks[0]["one rank dies"]
    assert told["error"].startswith(
        "SamplerError: rank 0 of the tensor-parallel group cannot reach the other ranks: "
    )
    assert told["error"].endswith("\nhint: look for the first error that another rank logged")
    assert told["running"] == []


def test_stop_strings_of_a_request_join_those_of_the_settings() -> None:
    llm = fake_vllm.llm()
    ask(
        VLLMColocateSampler(llm, generation_kwargs={"stop": "x"}),
        request(),
        request("r1", stop=("y", "x")),
    )
    first, second = llm.llm_engine.params
    assert (first.stop, second.stop) == (["x"], ["x", "y"])
    assert second.detokenize
