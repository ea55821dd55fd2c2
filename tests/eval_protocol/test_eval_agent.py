"""`eval_test`: which test, which rows, which processor; and what cannot be trained."""

import json
import re
from typing import Any

import pytest

from abut.agents.protocol import is_agent
from tests.kit.stage.evals import call_text, last_user, play_test
from tests.kit.stage.rollouts import Recording, Stage

pytest.importorskip("eval_protocol")

from eval_protocol.models import EvaluateResult, EvaluationRow, InputMetadata, Message
from eval_protocol.pytest import (
    RolloutProcessor,
    SingleTurnRolloutProcessor,
    evaluation_test,
)
from eval_protocol.pytest.remote_rollout_processor import RemoteRolloutProcessor

from abut.eval_protocol import eval_test


def made(**arguments: Any) -> Any:
    """A test of these arguments, whose body gives 1."""
    given: dict[str, Any] = {
        "input_messages": [[[Message(role="user", content="hi")]]],
        "completion_params": [{"model": "openai/m"}],
        "disable_browser_open": True,
    }
    if {"input_rows", "data_loaders"} & arguments.keys():
        del given["input_messages"]

    @evaluation_test(**given | arguments)
    def test_made(row: EvaluationRow) -> EvaluationRow:
        row.evaluation_result = EvaluateResult(score=1.0, reason="")
        return row

    return test_made


def test_several_tests_in_a_module_are_named() -> None:
    with pytest.raises(ValueError, match="has 2 tests: test_length, test_letter") as raised:
        eval_test("ep_own.two_tests")
    assert 'hint: name one, as in eval_test("ep_own.two_tests:test_length")' in str(raised.value)
    assert eval_test("ep_own.two_tests:test_length").name == "ep_own.two_tests:test_length"
    with pytest.raises(
        ValueError, match="has no test 'test_x'; its tests are test_length, test_letter"
    ):
        eval_test("ep_own.two_tests:test_x")


def test_several_keywords_are_listed() -> None:
    with pytest.raises(ValueError, match="test_letter has 2 evaluation_test_kwargs") as raised:
        eval_test("ep_own.two_tests:test_letter")
    assert "  kwargs={'letter': 'a'}\n  kwargs={'letter': 'e'}\n" in str(raised.value)
    with pytest.raises(
        ValueError, match="kwargs has 'row', but abut passes this argument to the test itself"
    ):
        eval_test("ep_own.two_tests:test_letter", kwargs={"row": 1})


def test_keywords_that_are_chosen_reach_the_body(stage: Stage) -> None:
    test = eval_test("ep_own.two_tests:test_letter", kwargs={"letter": "e"}, log=None)
    assert play_test(stage, test, lambda text: "eleven").rewards == [3.0] * 4


def test_what_is_no_test_is_refused() -> None:
    with pytest.raises(TypeError, match="not an @evaluation_test"):
        eval_test(lambda row: row)
    with pytest.raises(
        ModuleNotFoundError, match=r"the module 'ep_own\.nothing' cannot be found\nhint: "
    ):
        eval_test("ep_own.nothing")
    with pytest.raises(ValueError, match="json has no @evaluation_test"):
        eval_test("json")
    with pytest.raises(ValueError, match="log='some': must be 'all', 'sample' or None"):
        eval_test(made(), log="some")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="row_timeout_s=0: must be more than 0 seconds"):
        eval_test(made(), row_timeout_s=0)


def test_it_is_an_agent_and_its_name_is_its_own() -> None:
    test = eval_test(made(), name="mine")
    assert is_agent(test)
    assert test.dataset()["environment"] == ["mine"]


def test_rows_come_as_eval_protocol_loads_them() -> None:
    """Adapted, cut to three and filtered; the file's empty line is none."""
    rows = eval_test("ep_own.adapted").dataset()
    assert rows["row_id"] == ["boat", "car"]
    assert rows["prompt"][0] == "How many letters has boat?"
    row = EvaluationRow.model_validate_json(rows["eval_row"][1])
    assert row.ground_truth == {"letters": 3, "word": "car"}


def test_rows_are_changed_as_the_test_says() -> None:
    """Under pytest Eval Protocol 0.3.33 fails where there is a preprocess_fn."""

    def say_first(rows: list[EvaluationRow]) -> list[EvaluationRow]:
        for row in rows:
            row.messages.insert(0, Message(role="system", content="Count."))
        return rows

    assert eval_test(made(preprocess_fn=say_first)).dataset()["prompt"] == [
        "system: Count.\n\nuser: hi"
    ]


def test_rows_without_an_id_have_the_same_one_each_time() -> None:
    first, again = (eval_test("ep_own.two_tests:test_length").dataset()["row_id"] for _ in "12")
    assert first == again
    assert len(set(first)) == 2


def test_rows_survive_arrow_whatever_keys_they_have() -> None:
    truths: list[Any] = [{"a": 1}, {"b": [1, None, {"c": 0.5}]}, "text", None]
    rows = [EvaluationRow(messages=[], ground_truth=truth) for truth in truths]
    read = eval_test(made(input_rows=[rows])).dataset()
    texts = read["eval_row"]
    assert [EvaluationRow.model_validate_json(text).ground_truth for text in texts] == truths
    assert all(json.loads(text)["input_metadata"]["row_id"] for text in texts)


def test_a_row_that_json_would_change_is_refused() -> None:
    info = InputMetadata(row_id="r", dataset_info={"pair": (1, 2)})
    rows = [EvaluationRow(messages=[], input_metadata=info)]
    with pytest.raises(ValueError, match=r"row 'r': input_metadata cannot be kept as JSON\nhint: "):
        eval_test(made(input_rows=[rows])).dataset()


def test_no_rows_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"test_made has no rows\nhint: check its input_dataset"):
        eval_test(made(filtered_row_ids=["none"])).dataset()


def test_another_dataset_is_told_which_one_is_meant(stage: Stage) -> None:
    test = eval_test(made(), log=None)
    with pytest.raises(ValueError, match="needs the column 'eval_row' of its dataset") as raised:
        play_test(stage, test, rows=[{"prompt": "hi"}])
    assert "hint: use train_dataset=eval_test(…).dataset()" in str(raised.value)


def test_processors_that_ask_elsewhere_are_refused() -> None:
    remote = RemoteRolloutProcessor(remote_base_url="http://127.0.0.1:9")
    with pytest.raises(ValueError, match="RemoteRolloutProcessor, which cannot train: its") as e:
        eval_test(made(rollout_processor=remote))
    assert "hint: give the test a processor that calls completion_params['base_url']" in str(
        e.value
    )


def test_a_slice_that_cuts_a_group_is_refused_where_groups_are_scored(stage: Stage) -> None:
    @evaluation_test(
        input_messages=[[[Message(role="user", content="hi")]]],
        completion_params=[{"model": "openai/m"}],
        mode="groupwise",
    )
    def test_group(rows: list[EvaluationRow]) -> list[EvaluationRow]:
        return rows

    with pytest.raises(ValueError, match="scores all generations of a row together") as raised:
        play_test(stage, eval_test(test_group, log=None), whole_group=False)
    assert "per_device_train_batch_size" in str(raised.value)


def test_retries_of_a_client_are_no_turns(stage: Stage) -> None:
    """A processor that asks the same again, and says so, as SDKs do after a lost answer."""

    class Again(RolloutProcessor):
        def __call__(self, rows: Any, config: Any) -> Any:
            import asyncio

            import httpx

            async def play(row: EvaluationRow) -> EvaluationRow:
                params = config.completion_params
                body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
                headers = {"Authorization": f"Bearer {params['api_key']}"}
                url = f"{params['base_url']}/chat/completions"
                said = []
                async with httpx.AsyncClient(headers=headers) as client:
                    for count in "012":
                        reply = await client.post(
                            url, json=body, headers={"x-stainless-retry-count": count}
                        )
                        said.append(reply.json()["choices"][0]["message"]["content"])
                row.messages.append(Message(role="assistant", content=" ".join(said)))
                return row

            return [asyncio.create_task(play(row)) for row in rows]

    batch = play_test(stage, eval_test(made(rollout_processor=Again()), log=None), generations=1)
    assert (len(batch.one.turns), len(batch.one.branches), batch.one.reward) == (1, 0, 1.0)


def test_generations_of_a_row_never_share_a_sample(stage: Stage) -> None:
    """32 rollouts ask the same first question; a cache would give all of them one answer."""
    numbers = iter(range(1000))

    def script(request: Any) -> list[int]:
        text = f"answer {next(numbers)}"
        return [*stage.tokenizer.encode(text), stage.processor.close_token_id]

    for name in ("ep_own.two_tests:test_length", "ep_own.mcp_tools"):
        sampler = Recording(script)
        batch = play_test(stage, eval_test(name, log=None), sampler=sampler, generations=16)
        said = [rollout.messages[-1]["content"] for rollout in batch.rollouts]
        assert len(set(said)) == len(batch.rollouts) == len(sampler.calls)


def test_a_batch_of_all_rows_is_scored_together(stage: Stage) -> None:
    @evaluation_test(
        input_messages=[[[Message(role="user", content=f"n {k}")] for k in range(3)]],
        completion_params=[{"model": "openai/m"}],
        mode="all",
    )
    async def test_all(rows: list[EvaluationRow]) -> list[EvaluationRow]:
        for row in rows[:-1]:  # the last one is left out, and has no score
            row.evaluation_result = EvaluateResult(score=float(len(rows)), reason="")
        return list(reversed(rows[:-1]))

    batch = play_test(stage, eval_test(test_all, log=None), lambda text: last_user(text))
    assert batch.rewards == [6.0] * 5 + [None]


def test_step_and_generation_reach_no_body_and_secrets_neither(stage: Stage) -> None:
    """What a body sees of the model is what the test says, without address and key."""
    seen: list[Any] = []

    @evaluation_test(
        input_messages=[[[Message(role="user", content="hi")]]],
        completion_params=[{"model": "openai/m", "max_tokens": 9}],
    )
    def test_sees(row: EvaluationRow) -> EvaluationRow:
        seen.append(dict(row.input_metadata.completion_params))
        return row

    play_test(stage, eval_test(test_sees, log=None), generations=1)
    assert seen == [{"model": "policy", "max_tokens": 9}]


def test_a_processor_with_a_server_on_a_fixed_port_has_one_rollout_at_a_time(stage: Stage) -> None:
    """By the name of its class, as Eval Protocol's own: a call starts a server, cleanup ends it."""
    live: list[int] = []
    told: list[str] = []

    class MCPGymRolloutProcessor(SingleTurnRolloutProcessor):
        def __call__(self, rows: Any, config: Any) -> Any:
            told.append("call")
            live.append(1)
            assert len(live) == 1
            return super().__call__(rows, config)

        def cleanup(self) -> None:
            told.append("cleanup")
            live.clear()

    test = eval_test(made(rollout_processor=MCPGymRolloutProcessor()), log=None)
    assert play_test(stage, test, generations=4).rewards == [1.0] * 4
    assert told == ["call", "cleanup"] * 4 + ["cleanup"]


@pytest.mark.parametrize(
    ("name", "call", "score"),
    [
        ("ep_own.typed", call_text("capital", country="Italy"), 1.0),
        ("ep_own.mcp_tools", call_text("add", a=2, b=3), 1.0),
        ("ep_own.graph", call_text("weather", city="Rome"), 1 + len("It is: sunny in Rome") / 64),
    ],
)
def test_agents_with_tools_are_one_conversation(
    stage: Stage, name: str, call: str, score: float
) -> None:
    """The call is asked for, its result comes back, and both turns are in one row."""

    def policy(text: str) -> str:
        said = last_user(text)
        result = re.sub(r"</?tool_response>", "", said).strip()
        return call if said.rstrip().endswith(("?", ".")) else f"It is: {result}"

    batch = play_test(stage, eval_test(name, log=None), policy)
    assert [rollout.error for rollout in batch.rollouts] == [None, None]
    assert [len(rollout.turns) for rollout in batch.rollouts] == [2, 2]
    assert [len(rollout.branches) for rollout in batch.rollouts] == [0, 0]
    assert batch.rewards == [score] * 2


def test_each_file_is_cut_where_files_are_not_combined(tmp_path: Any) -> None:
    paths = []
    for name in "ab":
        lines = [
            json.dumps({"messages": [{"role": "user", "content": f"{name}{k}"}]}) for k in "123"
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
        paths.append(str(tmp_path / f"{name}.jsonl"))
    for combine, prompts in ((True, ["a1", "a2"]), (False, ["a1", "a2", "b1", "b2"])):
        test = made(
            input_messages=None,
            input_dataset=paths,
            dataset_adapter=lambda lines: [EvaluationRow(**line) for line in lines],
            max_dataset_rows=2,
            combine_datasets=combine,
        )
        assert list(eval_test(test).dataset()["prompt"]) == prompts


@pytest.mark.parametrize("mode", ["pointwise", "groupwise", "all"])
def test_only_a_row_without_a_result_is_unmeasured(stage: Stage, mode: Any) -> None:
    """Whichever way a test gets its rows; a result of 0 is one."""

    def judge(row: EvaluationRow) -> EvaluationRow:
        if row.messages[-1].content != "nothing":
            row.evaluation_result = EvaluateResult(score=0.0, reason="")
        return row

    def test_row(row: EvaluationRow) -> EvaluationRow:
        return judge(row)

    def test_rows(rows: list[EvaluationRow]) -> list[EvaluationRow]:
        return [judge(row) for row in rows]

    body = test_row if mode == "pointwise" else test_rows
    model = {"model": "openai/m"}
    models = [model, {**model, "temperature": 1.0}] if mode == "groupwise" else [model]
    test = evaluation_test(
        input_messages=[[[Message(role="user", content="hi")]]],
        completion_params=models,
        rollout_processor=SingleTurnRolloutProcessor(),
        mode=mode,
    )(body)
    said = iter(["nothing", "something"])
    batch = play_test(stage, eval_test(test, log=None), lambda text: next(said))
    found = {r.messages[-1]["content"]: (r.reward, r.measured) for r in batch.rollouts}
    assert found == {"nothing": (None, False), "something": (0.0, True)}


@pytest.mark.parametrize(
    ("leaves", "why"),
    [("nothing", "it did not set evaluation_result"), ("skip", "Skipped: not today")],
)
def test_a_body_that_gives_no_result_says_so_once(
    stage: Stage, caplog: pytest.LogCaptureFixture, leaves: str, why: str
) -> None:
    @evaluation_test(
        input_messages=[[[Message(role="user", content="hi")]]],
        completion_params=[{"model": "openai/m"}],
    )
    def test_leaves(row: EvaluationRow) -> EvaluationRow:
        if leaves == "skip":
            pytest.skip("not today")
        return row

    with caplog.at_level("WARNING", "abut"):
        play_test(stage, eval_test(test_leaves, log=None))
    said = [
        text
        for text in caplog.messages
        if f"did not give a score, so its rollouts have no reward: {why}" in text
    ]
    assert len(said) == 1
