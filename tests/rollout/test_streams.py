"""Streams: arrays along the tokens, from a sample to its place in the row, the branch, the record.

Reference: each sampled token has a number of its own, which follows from its call and its position.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abut import AgentResult, Columns, Endpoint, RolloutConfig, agent
from abut.errors import SamplerError
from abut.records.read import read_records, recorded_streams
from abut.records.recorder import ParquetRecorder, recorder_at
from abut.rollout.rollout import TEACHER_LOGPROBS, Branch, TurnRecord, give_stream
from abut.samplers.sampler import Sample, SampleRequest, check_sample
from tests.kit.data.records import a_rollout
from tests.kit.stage.agents import Client, play_agents, user
from tests.kit.stage.rollouts import Recording, Stage, Talk

NAMES = ("routed_experts", "kept", "margin")
REQUEST = SampleRequest(np.arange(3), 4, (9,), seed=1, rollout_id="r7", turn=2)


class Streaming(Recording):
    """Gives each sample three streams: of bytes in two dimensions, of integers, of floats."""

    async def sample(self, request: SampleRequest) -> Sample:
        sample = await super().sample(request)
        tokens = len(sample.ids)
        number = 100 * len(self.calls) + np.arange(tokens)
        streams = {
            "routed_experts": np.stack([number % 251, number % 7], 1).astype(np.uint8),
            "kept": number,
            "margin": number.astype(np.float32) / 8,
            "unasked": np.zeros(1),
        }
        given = replace(sample, streams=streams)
        self.calls[-1] = (request, given)
        return given


def check_row(row: Any, samples: Sequence[Sample]) -> None:
    """The row has the streams of these samples, in order, and nothing at other tokens."""
    mask = row.columns.env_mask == 1
    assert row.streams.keys() == {*NAMES}
    for name in NAMES:
        values = row.streams[name]
        assert len(values) == len(mask)
        expected = np.concatenate([sample.streams[name] for sample in samples])
        assert values[mask].tolist() == expected.tolist()
        nothing = values[~mask]
        assert np.isnan(nothing).all() if name == "margin" else (nothing == -1).all()


def test_each_sampled_token_of_an_environment_has_its_values(stage: Stage) -> None:
    played = stage.play(Talk, Talk, sampler=Streaming(stage.says()), streams=NAMES)
    for rollout in played.rollouts:
        samples = [sample for _, sample in played.calls(rollout)]
        assert len(samples) == 3
        assert not rollout.columns.env_mask.all()
        check_row(rollout, samples)
        assert rollout.streams["routed_experts"].dtype == np.int16, "bytes have no -1"
        assert rollout.streams["margin"].dtype == np.float32
        assert all(request.streams == NAMES for request, _ in played.calls(rollout))


def test_forks_and_what_nobody_received_have_their_own_values(stage: Stage) -> None:
    """Row: one, three. A fork behind the first answer: two. Another conversation: four."""

    @agent
    async def forks(endpoint: Endpoint) -> AgentResult:
        async with Client(endpoint) as client:
            first = await client.ask([user("one")])
            await client.ask([user("one"), first, user("two")])
            await client.ask([user("one"), first, user("three")])
            await client.ask([user("four")])
        return AgentResult(1.0)

    played = play_agents(stage, forks, sampler=Streaming(stage.says()), streams=NAMES)
    rollout = played.one
    one, two, three, four = [sample for _, sample in played.sampler.calls]
    check_row(rollout, [one, three])
    owned = {len(branch.turns_before): branch for branch in rollout.branches}
    assert owned.keys() == {0, 1}
    check_row(owned[1], [two])
    check_row(owned[0], [four])


def test_a_row_that_is_cut_before_its_last_turn_has_no_value_of_it() -> None:
    columns = Columns(
        prompt_ids=[1, 2], completion_ids=[3, 4, 5], logprobs=[-0.5, 0.0, -0.5], env_mask=[1, 0, 1]
    )
    turns = [
        TurnRecord(2, 3, streams={"kept": np.array([7])}),
        TurnRecord(4, 5, streams={"kept": np.array([8])}),
        TurnRecord(8, 8, streams={"kept": np.zeros(0, np.int64)}),  # an empty sample
    ]
    assert Branch(columns, turns=turns).streams["kept"].tolist() == [7, -1, 8]
    fork = Columns(prompt_ids=[1, 2, 3, 4], completion_ids=[5], logprobs=[-0.5], env_mask=[1])
    assert Branch(fork, turns=turns[1:]).streams["kept"].tolist() == [8]
    partly = [turns[0], TurnRecord(4, 5)]
    assert Branch(columns, turns=partly).streams["kept"].tolist() == [7, -1, -1]


def test_turns_whose_values_have_two_shapes_are_refused() -> None:
    columns = Columns(prompt_ids=[1], completion_ids=[2, 3], logprobs=[-0.5, -0.5], env_mask=[1, 1])
    turns = [TurnRecord(k, k + 1, streams={"kept": np.zeros((1, k))}) for k in (1, 2)]
    with pytest.raises(SamplerError) as raised:
        _ = Branch(columns, turns=turns).streams
    assert str(raised.value) == (
        "stream 'kept' has different shapes in the turns of one row: (1,), (2,)\n"
        "hint: after the first dimension, all arrays of a stream must have the same shape"
    )


@pytest.mark.parametrize(
    ("streams", "text"),
    [
        (
            {"kept": np.zeros(3)},
            "a stream 'kept' of shape (3,)\nhint: a stream's first dimension must be as long "
            "as ids",
        ),
        (
            {"kept": np.float32(1)},
            "a stream 'kept' of shape ()\nhint: a stream's first dimension must be ",
        ),
        ({"kept": ["a", "b"]}, "a stream 'kept' of dtype <U1, which is not numeric"),
        (
            {"other": np.zeros(2)},
            "a sample without the stream 'kept', which RolloutConfig.streams names\nhint: "
            "remove the name, or use a sampler whose Sample.streams has it",
        ),
        ({"versions": np.zeros(1), "kept": np.zeros(2)}, "a stream 'versions' of shape (1,)"),
    ],
    ids=["too long", "a number", "text", "missing", "versions"],
)
def test_a_wrong_stream_is_named_with_its_turn(streams: Any, text: str) -> None:
    ids, logprobs = np.arange(2), np.zeros(2, np.float32)
    given = Sample(ids, logprobs, "stop", streams=streams)
    with pytest.raises(SamplerError) as raised:
        check_sample(given, replace(REQUEST, streams=("kept",)))
    assert str(raised.value).startswith("rollout r7, turn 2: the sampler returned ")
    assert text in str(raised.value)


def test_a_stream_that_nobody_asked_for_is_dropped_unseen() -> None:
    ids, logprobs = np.arange(2), np.zeros(2, np.float32)
    given = Sample(ids, logprobs, "stop", streams={"kept": np.zeros(5), "versions": [3, 4]})
    assert {k: v.tolist() for k, v in check_sample(given, REQUEST).streams.items()} == {
        "versions": [3, 4]
    }


def test_one_name_is_not_a_tuple_of_names() -> None:
    with pytest.raises(
        ValueError, match=r"RolloutConfig\.streams='kept': must be a tuple of names"
    ):
        RolloutConfig(streams="kept")  # type: ignore[arg-type]


def test_values_of_a_row_are_given_to_its_turns() -> None:
    turns = [TurnRecord(2, 3), TurnRecord(5, 5), TurnRecord(4, 6)]
    give_stream(turns, "teacher_logprobs", np.array([-1.0, -2.0, -3.0], np.float32))
    of_turns = [turn.streams["teacher_logprobs"].tolist() for turn in turns]
    assert of_turns == [[-1.0], [], [-2.0, -3.0]]
    with pytest.raises(
        ValueError, match="'teacher_logprobs': got 2 values for the 3 sampled tokens"
    ):
        give_stream(turns, "teacher_logprobs", np.zeros(2))
    give_stream([], "teacher_logprobs", np.zeros(0))


# ---- records


@pytest.mark.parametrize("form", ["rollouts.jsonl", "rollouts"])
def test_records_have_the_values_of_row_and_branches(
    stage: Stage, tmp_path: Path, form: str
) -> None:
    pytest.importorskip("pyarrow")
    played = stage.play(sampler=Streaming(stage.says()), streams=NAMES)
    rollout = played.one
    of_teacher = np.linspace(-3, -0.5, rollout.sampled_tokens, dtype=np.float32)
    give_stream(rollout.turns, TEACHER_LOGPROBS, of_teacher)
    rollout.teacher = "math"
    branch = Branch(rollout.columns, turns=rollout.turns)
    rollout.branches = [branch, Branch(a_rollout().columns)]
    recorder = recorder_at(tmp_path / form)
    recorder.write(rollout, step=1)
    recorder.write(a_rollout("plain"), step=1)
    if isinstance(recorder, ParquetRecorder):
        recorder.flush()
    record, plain = read_records(tmp_path / form)
    assert (record["teacher"], plain["teacher"]) == ("math", None)
    mask = rollout.columns.env_mask == 1
    for of in (record, record["branches"][0]):
        said = np.array(of["teacher_logprobs"])
        assert said[mask] == pytest.approx(of_teacher, abs=1e-6)
        assert (said[~mask] == 0).all()
        streams = recorded_streams(of)
        assert streams.keys() == {*NAMES}
        for name in NAMES:
            assert streams[name].tolist() == rollout.streams[name][mask].tolist()
    for of in (plain, record["branches"][1]):
        assert (of["teacher_logprobs"], of["versions"], of["streams"]) == (None, None, [])
