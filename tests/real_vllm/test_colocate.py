"""vLLM in the trainer's process: its samples are what the trainer's model says they are."""

import asyncio
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abut.errors import SamplerError
from abut.samplers.sampler import SampleRequest
from abut.samplers.vllm import VLLMColocateSampler
from tests.kit.data.requests import FILTERS, requests
from tests.kit.stage.rollouts import Talk, check_exact, env
from tests.kit.stage.streams import Ask, ask, kept_answers, served
from tests.kit.training.forward_pass import worst
from tests.kit.training.vllm_training import (
    LEARNING,
    a_trainer,
    check_learning,
    exact_engine,
    reload_weights,
    shut_down,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # of TRL and vLLM among themselves

LONG = {"generation_kwargs": {"ignore_eos": True}}


class Run:
    """A trainer whose engine gets the weights, or does not."""

    def __init__(self, trainer: Any, outputs: list[Any]) -> None:
        self.trainer = trainer
        self.outputs = outputs
        self.llm = trainer.vllm_generation.llm
        self.is_synced = True

    def sync(self) -> None:
        if self.is_synced:
            reload_weights(self.llm, self.trainer.vllm_generation._iter_named_params())


@pytest.fixture(scope="module")
def run(model_folder: Path, hf_tokenizer: Any, tmp_path_factory: Any) -> Iterator[Run]:
    import trl.generation.vllm_generation as generation
    from transformers import AutoModelForCausalLM

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHDYNAMO_DISABLE", "1")
        patch.setenv("VLLM_NO_USAGE_STATS", "1")
        patch.setattr(generation, "LLM", functools.partial(generation.LLM, **exact_engine()))
        trainer, outputs = a_trainer(
            AutoModelForCausalLM.from_pretrained(model_folder),
            hf_tokenizer,
            Path(tmp_path_factory.mktemp("colocate")),
            vllm_mode="colocate",
            vllm_max_model_length=1024,
            **LEARNING,
        )
        run = Run(trainer, outputs)
        patch.setattr(generation.VLLMGeneration, "sync_weights", lambda _: run.sync())
        yield run
        shut_down(run.llm)


@pytest.fixture
def llm(run: Run, untied: Any) -> Any:
    """The engine, with the weights of `untied`."""
    reload_weights(run.llm, untied.named_parameters())
    yield run.llm
    assert not run.llm.llm_engine.has_unfinished_requests()


@pytest.mark.parametrize("settings", FILTERS, ids=str)
def test_logprobs_are_those_of_the_filtered_distribution(
    llm: Any, untied: Any, settings: Any
) -> None:
    asked = requests()
    samples = ask(VLLMColocateSampler(llm, **settings), *asked)
    assert sum(len(sample.ids) for sample in samples) > 20
    assert worst(untied.eval(), asked, samples, **settings) < 1e-4


def test_the_same_seed_gives_the_same_sample(llm: Any) -> None:
    sampler = VLLMColocateSampler(llm)
    many = ask(sampler, *requests(64))
    (alone,) = ask(sampler, *requests(1))
    assert alone.ids.tolist() == many[0].ids.tolist(), "alone as among 64"
    other = ask(sampler, *requests(8, stop_token_ids=()))
    assert {len(sample.ids) for sample in other} >= {12}


def test_a_stop_string_ends_a_turn_and_is_named(llm: Any, hf_tokenizer: Any) -> None:
    (whole,) = ask(VLLMColocateSampler(llm), *requests(1, stop_token_ids=()))
    word = hf_tokenizer.decode(whole.ids[3:5])
    sampler = VLLMColocateSampler(llm, generation_kwargs={"stop": [word]})
    (cut,) = ask(sampler, *requests(1, stop_token_ids=()))
    assert (cut.finish_reason, cut.stop_string) == ("stop", word)
    assert cut.ids.tolist() == whole.ids[: len(cut.ids)].tolist()
    assert len(cut.ids) < len(whole.ids)


def test_structured_outputs_bind_a_turn(llm: Any, hf_tokenizer: Any) -> None:
    settings = {"structured_outputs": {"regex": "(yes|no)!"}}
    asked = requests(8, stop_token_ids=())
    samples = ask(VLLMColocateSampler(llm, generation_kwargs=settings), *asked)
    texts = {hf_tokenizer.decode(sample.ids, skip_special_tokens=True) for sample in samples}
    assert texts <= {"yes!", "no!"}


def test_rollouts_of_64_at_once_are_exact(
    llm: Any, stage: Any, untied: Any, monkeypatch: Any
) -> None:
    sampler: Any = VLLMColocateSampler(llm)
    sampler.calls = kept_answers(monkeypatch)
    envs = [env(Talk, turns=1 + k % 4) for k in range(64)]
    played = stage.play(*envs, sampler=sampler, max_turn_tokens=12)
    assert all(not rollout.failed for rollout in played.rollouts)
    for rollout in played.rollouts:
        check_exact(rollout.columns, played.calls(rollout))
    asked, samples = zip(*sampler.calls[::8], strict=True)
    assert worst(untied.eval(), asked, samples) < 1e-4


def test_turns_join_a_turn_that_runs(llm: Any, untied: Any) -> None:
    ended: list[str] = []
    (long,) = requests(1, max_tokens=900, stop_token_ids=())
    _, short = requests(2, stop_token_ids=())

    async def play(ask: Ask) -> Any:
        async def turns(request: Any, count: int) -> Any:
            samples = [await ask(request) for _ in range(count)]
            ended.append(request.rollout_id)
            return samples[-1]

        running = asyncio.ensure_future(turns(long, 1))
        while not llm.llm_engine.has_unfinished_requests():
            await asyncio.sleep(0.001)
        return await asyncio.gather(running, turns(short, 3))

    while ended != ["r1", "r0"]:  # once is enough: the threads may stand still between two turns
        ended.clear()
        samples = served(VLLMColocateSampler(llm, **LONG), play)
    assert [len(sample.ids) for sample in samples] == [900, 12]
    assert worst(untied.eval(), [long, short], samples) < 1e-4


def test_a_turn_that_is_given_up_is_freed_and_the_others_go_on(llm: Any, untied: Any) -> None:
    asked = requests(4, max_tokens=900, stop_token_ids=())

    async def play(ask: Ask) -> Any:
        first, *others = (asyncio.ensure_future(ask(request)) for request in asked)
        while not llm.llm_engine.has_unfinished_requests():
            await asyncio.sleep(0.001)
        first.cancel()
        while llm.llm_engine.get_num_unfinished_requests() > 3:
            await asyncio.sleep(0.001)
        freed.append(not any(other.done() for other in others))
        return await asyncio.gather(*others)

    freed: list[bool] = []
    while not any(freed):  # as above
        samples = served(VLLMColocateSampler(llm, **LONG), play)
        assert [len(sample.ids) for sample in samples] == [900] * 3
    assert worst(untied.eval(), asked[1:], samples) < 1e-4


def test_the_engines_context_ends_the_rollout(llm: Any, stage: Any) -> None:
    long = env(Talk, turns=99, texts=["and so on " * 20])
    sampler = VLLMColocateSampler(llm)
    played = stage.play(long, sampler=sampler, completion=9999, max_turns=99)
    assert played.one.error is None
    assert played.one.stop_reason == "max_context_tokens"


def test_an_id_outside_the_vocabulary_is_an_error(llm: Any) -> None:
    outside = SampleRequest(np.asarray([5, 99_999]), 4, (), 0, "r0", 0)
    with pytest.raises(SamplerError) as raised:
        ask(VLLMColocateSampler(llm), *requests(3), outside)
    assert str(raised.value) == (
        "rollout r0, turn 0: vLLM refused the request: Token id 99999 is out of vocabulary\n"
        "hint: use the same vocabulary for the served model and the rollouts' tokenizer"
    )


@pytest.mark.parametrize("synced", [True, False], ids=["synced", "without sync"])
def test_the_trainer_computes_the_logprobs_that_were_sampled(
    run: Run, untied: Any, synced: bool
) -> None:
    run.outputs.clear()
    run.trainer.state.log_history.clear()
    run.trainer.model.load_state_dict(untied.state_dict())
    run.is_synced = True
    run.sync()
    run.is_synced = synced
    run.trainer.train()
    check_learning(run.trainer, run.outputs, synced=synced)
