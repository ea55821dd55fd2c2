"""The ten hardest cases of multi-turn training data; docs/how-to/policies.md has the right answers.

Each is played through the real pieces: engine, episode, processor and trajectory, with the
package's own tokenizer, and with Qwen3's and Mistral's where they are at hand.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import abut
from abut.errors import SamplerError, SeamError
from abut.records.record import to_record
from abut.samplers.sampler import Sample, SampleRequest
from abut.template.processor import ChatTemplateProcessor
from tests.kit.checkout import ROOT
from tests.kit.stage.rollouts import Played, Recording, Stage, Talk, check_exact, env, row, shifted

pytestmark = pytest.mark.usefixtures("no_thread_stays")

MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }}</s>"
    "{% else %}[INST] {{ m.content }}[/INST]{% endif %}{% endfor %}"
)


@pytest.fixture(scope="module", params=["demo", "qwen3", "mistral_v3"])
def any_stage(request: pytest.FixtureRequest) -> Stage:
    """A stage for each tokenizer that is at hand."""
    if request.param == "demo":
        return request.getfixturevalue("stage")
    return real_stage(request.param)


@pytest.fixture(scope="module")
def qwen3_stage() -> Stage:
    return real_stage("qwen3")


def real_stage(name: str) -> Stage:
    transformers = pytest.importorskip("transformers")
    folder = Path(os.environ.get("ABUT_TOKENIZERS") or "/nowhere") / name
    if not folder.is_dir():
        pytest.skip(f"ABUT_TOKENIZERS has no {name}")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    template = None if tokenizer.chat_template else MISTRAL
    processor = ChatTemplateProcessor(tokenizer, chat_template=template)
    return Stage(abut.Tokenizer.from_pretrained(tokenizer), processor)


class Hearing(Talk):
    """Keeps what it hears."""

    heard: list[str]

    def step(self, action: str) -> tuple[Any, Any]:
        self.heard.append(action)
        return super().step(action)


class Ended(Recording):
    """A sampler whose samples are what `change` makes of them."""

    def __init__(self, script: Any, change: Any) -> None:
        super().__init__(script)
        self.change = change

    async def sample(self, request: SampleRequest) -> Sample:
        sample = self.change(await super().sample(request))
        self.calls[-1] = (request, sample)
        return sample


def play(stage: Stage, script: Any, **options: Any) -> tuple[Played, list[str]]:
    """Two turns; the row is exact. Returns what was played and what the env heard."""
    heard: list[str] = []
    ids = script if callable(script) else lambda request: script
    played = stage.play(env(Hearing, heard=heard, turns=2), script=ids, **options)
    assert played.one.error is None
    check_exact(played.one.columns, played.calls(played.one))
    return played, heard


def between_turns(stage: Stage, played: Played) -> tuple[list[int], list[str]]:
    """The ids between the first two samples, and who wrote each."""
    rollout = played.one
    first, second = rollout.turns
    names = [abut.trajectory.PROVENANCE[code] for code in rollout.provenance]
    columns = rollout.columns
    assert columns is not None
    prompt = len(columns.prompt_ids)
    assert not columns.env_mask[first.end - prompt : second.start - prompt].any()
    return row(rollout)[first.end : second.start], names[first.end : second.start]


def ids_of(stage: Stage, text: str) -> list[int]:
    """As the model would write it: its own control tokens are tokens."""
    ids: list[int] = stage.tokenizer.encode_parts([abut.Scaffold(text)], at_start=False).tolist()
    return ids


# ---- 0


def test_each_case_has_a_policy_and_its_tests() -> None:
    policies = (ROOT / "docs" / "how-to" / "policies.md").read_text(encoding="utf-8")
    _, *told = re.split(r"^### ", policies, flags=re.MULTILINE)
    evidence = (ROOT / "docs" / "background" / "evidence.md").read_text(encoding="utf-8")
    cases = re.findall(r"^\| (\d+\. [^|]+) \| ([^|]+) \|$", evidence, flags=re.MULTILINE)
    assert [title for title, _ in cases] == [case.splitlines()[0] for case in told]
    assert [title.partition(".")[0] for title, _ in cases] == [str(k) for k in range(1, 11)]
    for case in told:
        assert "*In the record:*" in case
    for title, tests in cases:
        named = re.findall(r"`(test_\w+)`", tests)
        assert named, title
        assert not [name for name in named if name not in globals()]


# ---- 1


def test_the_separator_after_a_sampled_stop_token_is_context(any_stage: Stage) -> None:
    close = any_stage.processor.close_token_id
    played, _ = play(any_stage, [*ids_of(any_stage, "yes"), close])
    ids, names = between_turns(any_stage, played)
    increment = any_stage.processor.increment([{"role": "user", "content": "go on"}])
    assert any_stage.tokenizer.decode(ids) == "".join(increment)
    assert increment[0].startswith(any_stage.processor.report.separator)
    assert set(names) == {"scaffold", "env"}
    assert row(played.one)[-1] == close, "after the last turn there is none"


# ---- 2


@pytest.mark.parametrize("name", ["demo", "qwen3"])
def test_a_merge_into_sampled_tokens_is_reported_and_not_applied(
    request: pytest.FixtureRequest, name: str
) -> None:
    stage = request.getfixturevalue("stage" if name == "demo" else "qwen3_stage")
    newline = stage.tokenizer.token_to_id("Ċ")
    sampled = [newline, *ids_of(stage, "yes"), stage.processor.close_token_id]
    played, _ = play(stage, sampled)
    rollout = played.one
    first = rollout.turns[0]
    assert row(rollout)[first.start - 1 : first.end] == [newline, *sampled]
    whole = stage.tokenizer.decode(row(rollout)[: first.end])
    assert stage.tokenizer.encode(whole).tolist() != row(rollout)[: first.end]
    assert rollout.seams[1] == ("merged", False)
    assert to_record(rollout)["seams"][1] == {"kind": "merged", "exact": False}
    trajectory = abut.Trajectory(stage.tokenizer)
    trajectory.append_parts(stage.processor.opening([{"role": "user", "content": "go on"}]))
    trajectory.request()
    seam = trajectory.append_sampled(sampled, [-1.0] * len(sampled))
    assert seam.canonical_ids is not None
    assert stage.tokenizer.decode(seam.canonical_ids).startswith("\n\n")


def test_a_merge_of_a_cut_sample_with_what_follows_is_reported_and_not_applied() -> None:
    tokenizer = real_stage("mistral_v3").tokenizer
    trajectory = abut.Trajectory(tokenizer)
    trajectory.append_text("[INST] hi[/INST]", added="parse", provenance="prompt")
    trajectory.request()
    trajectory.append_sampled([tokenizer.token_to_id("▁Hel")], [-1.0])
    seam = trajectory.append_text("lo")
    assert (seam.kind, seam.exact, seam.drop) == ("merged", False, 0)
    assert tokenizer.decode(trajectory.ids) == "[INST] hi[/INST] Hello"


# ---- 3


def test_a_turn_cut_by_length_is_closed_by_context(any_stage: Stage) -> None:
    played, heard = play(any_stage, ids_of(any_stage, "yes"))
    ids, names = between_turns(any_stage, played)
    assert (ids[0], names[0]) == (any_stage.processor.close_token_id, "close")
    assert names.count("close") == 1
    assert heard == ["yes"] * 2 or heard == [" yes"] * 2
    assert row(played.one)[-1] == ids_of(any_stage, "yes")[-1], "the last turn stays cut"
    assert played.one.turns[0].stop_token is None


@pytest.mark.parametrize("name", ["demo", "qwen3"])
def test_a_turn_cut_inside_thinking_closes_the_thinking_too(
    request: pytest.FixtureRequest, name: str
) -> None:
    stage = request.getfixturevalue("stage" if name == "demo" else "qwen3_stage")
    played, heard = play(stage, ids_of(stage, "<think>\nhm, let"))
    ids, names = between_turns(stage, played)
    text = stage.tokenizer.decode(ids)
    assert text.startswith("\n</think>\n\n<|im_end|>\n<|im_start|>user\n")
    closing = [id_ for id_, name in zip(ids, names, strict=True) if name == "close"]
    assert stage.tokenizer.decode(closing) == "\n</think>\n\n<|im_end|>"
    assert heard == ["", ""]
    assert not stage.row_text(played.one).endswith("</think>\n\n<|im_end|>")


def test_a_stop_token_inside_thinking_ends_the_turn_as_it_is(any_stage: Stage) -> None:
    close = any_stage.processor.close_token_id
    played, heard = play(any_stage, [*ids_of(any_stage, "<think>\nhm"), close])
    assert between_turns(any_stage, played)[1].count("close") == 0
    assert heard == ["", ""]


@pytest.mark.parametrize("name", ["demo", "qwen3"])
def test_a_turn_cut_inside_a_tool_call_is_a_malformed_call(
    request: pytest.FixtureRequest, name: str
) -> None:
    stage = request.getfixturevalue("stage" if name == "demo" else "qwen3_stage")
    cut = '<tool_call>\n{"name": "add", "arguments": {"a": '
    played, heard = play(stage, ids_of(stage, cut))
    ids, names = between_turns(stage, played)
    assert (ids[0], names.count("close")) == (stage.processor.close_token_id, 1)
    assert heard == [cut] * 2
    parsed = stage.processor.parse_tool_calls(heard[0])
    assert (parsed.content, parsed.calls) == ("", ())
    assert [m.error for m in parsed.malformed] == ["character 12: the JSON value is not closed"]


# ---- 4


def test_another_stop_token_stays_and_the_close_comes_after_it(any_stage: Stage) -> None:
    tokens = any_stage.tokenizer
    other = next(
        i for t in ("<|endoftext|>", "[/INST]") if (i := tokens.token_to_id(t)) is not None
    )
    for stops in [[other], [other, 7], [7, other]]:
        yes = ids_of(any_stage, "yes")
        played, heard = play(any_stage, [*yes, other], stop_token_ids=stops)
        ids, names = between_turns(any_stage, played)
        assert (ids[0], names.count("close")) == (any_stage.processor.close_token_id, 1)
        assert heard[0].strip() == "yes"
        turn = played.one.turns[0]
        assert turn.stop_token == turn.end - 1
        assert played.one.columns is not None
        assert row(played.one)[turn.end - 1] == other
        assert played.one.columns.env_mask[len(yes)] == 1


def test_a_sampled_close_is_never_written_twice(any_stage: Stage) -> None:
    close = any_stage.processor.close_token_id
    played, _ = play(any_stage, [*ids_of(any_stage, "yes"), close], stop_token_ids=[close, 7])
    ids, names = between_turns(any_stage, played)
    assert "close" not in names
    assert ids[0] != close


def trimmed(*, ids: int = 0, logprobs: int = 0) -> Any:
    """Samples that ended by a stop token which stands in only one array, or in none."""

    def change(sample: Sample) -> Sample:
        end = len(sample.ids)
        return Sample(sample.ids[: end - ids], sample.logprobs[: end - logprobs], "stop")

    return change


def test_an_eos_missing_from_ids_and_logprobs_is_written_as_context(any_stage: Stage) -> None:
    close = any_stage.processor.close_token_id
    script = any_stage.says("yes")
    sampler = Ended(script, trimmed(ids=1, logprobs=1))
    played, heard = play(any_stage, script, sampler=sampler)
    ids, names = between_turns(any_stage, played)
    assert (ids[0], names[0], names.count("close")) == (close, "close", 1)
    assert heard[0].strip() == "yes"
    record = to_record(played.one)["turns"][0]
    assert (record["finish_reason"], record["stop_token"]) == ("stop", None)


@pytest.mark.parametrize(("wrong", "counts"), [({"ids": 1}, (1, 2)), ({"logprobs": 1}, (2, 1))])
def test_an_eos_missing_from_one_of_them_is_refused(
    stage: Stage, wrong: dict[str, int], counts: tuple[int, int]
) -> None:
    """A trimmed end looks like logprobs that are off by one, which would train unnoticed."""
    ids = [11, stage.processor.close_token_id]
    with pytest.raises(SamplerError) as caught:
        stage.play(sampler=Ended(lambda request: ids, trimmed(**wrong)))
    assert str(caught.value) == (
        f"rollout r0: turn 0 has {counts[0]} sampled ids but {counts[1]} logprobs\nhint: pass "
        "one logprob per sampled id, the stop token included"
    )


# ---- 5


def stopped(stop_string: str) -> Any:
    return lambda sample: Sample(sample.ids, sample.logprobs, "stop", stop_string)


@pytest.mark.parametrize(
    ("text", "stop_string", "spoken"),
    [
        ("hello there stop", "top", "hello there s"),
        ("hello there stop and more", "top", "hello there s"),
        ("stop stop", "stop", ""),
        ("one\n\ntwo", "\ntwo", "one\n"),
        ("a ☃ b", "☃", "a "),
    ],
)
def test_a_stop_string_inside_a_token_keeps_the_ids_and_cuts_the_text(
    any_stage: Stage, text: str, stop_string: str, spoken: str
) -> None:
    tokens = any_stage.tokenizer
    ids = ids_of(any_stage, text)
    sampler = Ended(lambda request: ids, stopped(stop_string))
    played, heard = play(any_stage, None, sampler=sampler)
    prefix = tokens.decode(ids).removesuffix(text)  # SentencePiece begins with a space
    assert heard == [prefix + spoken] * 2
    turn = played.one.turns[0]
    assert row(played.one)[turn.start : turn.end] == ids
    assert turn.stop_token is not None
    straddling = turn.stop_token - turn.start
    before = tokens.decode_bytes(ids[:straddling])
    after = tokens.decode_bytes(ids[: straddling + 1])
    at = len((prefix + spoken).encode())
    assert len(before) <= at < len(after)
    assert turn.stop_inside == (len(before) < at)
    assert played.one.messages[1]["content"] == prefix + spoken
    record = to_record(played.one)["turns"][0]
    found = (record["stop_token"], record["stop_string"], record["stop_inside"])
    assert found == (turn.stop_token, stop_string, turn.stop_inside)
    assert between_turns(any_stage, played)[1].count("close") == 1


def test_a_stop_string_that_begins_with_a_token_straddles_none(stage: Stage) -> None:
    ids = [*ids_of(stage, "hello there"), *ids_of(stage, "END")]
    played, heard = play(stage, None, sampler=Ended(lambda request: ids, stopped("END")))
    assert (heard[0], played.one.turns[0].stop_inside) == ("hello there", False)


@pytest.mark.parametrize("stop_string", ["never said", ""])
def test_a_stop_string_that_was_not_sampled_is_an_error(stage: Stage, stop_string: str) -> None:
    with pytest.raises(SamplerError) as caught:
        stage.play(sampler=Ended(stage.says(stop=False), stopped(stop_string)))
    assert str(caught.value) == (
        f"rollout r0, turn 0: the sample ended with the stop string {stop_string!r}, but its "
        "text does not have it\n"
        "hint: the sampler must return all sampled ids, including those of the stop string"
    )


def test_tokens_after_a_stop_token_stay_and_are_not_heard(any_stage: Stage) -> None:
    close = any_stage.processor.close_token_id
    yes, more = ids_of(any_stage, "yes"), ids_of(any_stage, "and more")
    for tail in [more, [*more, close]]:
        played, heard = play(any_stage, [*yes, close, *tail])
        assert [text.strip() for text in heard] == ["yes", "yes"]
        turn = played.one.turns[0]
        assert turn.stop_token == turn.start + len(yes)
        assert row(played.one)[turn.start : turn.end] == [*yes, close, *tail]
        assert between_turns(any_stage, played)[1].count("close") == 0


def test_tokens_after_a_stop_token_inside_thinking_get_no_second_close(any_stage: Stage) -> None:
    close = any_stage.processor.close_token_id
    sample = [*ids_of(any_stage, "<think>\nhm"), close, *ids_of(any_stage, "\n")]
    played, heard = play(any_stage, sample)
    ids, names = between_turns(any_stage, played)
    assert names.count("close") == 0
    increment = any_stage.processor.increment([{"role": "user", "content": "go on"}])
    assert any_stage.tokenizer.decode(ids) == "".join(increment)
    assert heard == ["", ""]


def test_of_several_stop_tokens_the_templates_own_leaves_nothing_missing(stage: Stage) -> None:
    close = stage.processor.close_token_id
    other = next(i for i in stage.tokenizer.encode("<|endoftext|>").tolist() if i != close)
    yes, more = ids_of(stage, "yes"), ids_of(stage, "and more")
    for tail, closed in [([], 1), (more, 1), ([close], 0), ([close, *more], 0)]:
        played, heard = play(stage, [*yes, other, *tail], stop_token_ids=[other])
        assert heard == ["yes", "yes"]
        assert between_turns(stage, played)[1].count("close") == closed


# ---- 6


def test_a_sample_that_ends_inside_a_character_keeps_its_ids(any_stage: Stage) -> None:
    tokens = any_stage.tokenizer
    half = next(i for i in range(1, tokens.vocab_size) if tokens.decode_bytes([i]) == b"\xf0")
    played, heard = play(any_stage, [*ids_of(any_stage, "yes"), half])
    assert [text.strip() for text in heard] == ["yes\ufffd"] * 2
    turn = played.one.turns[0]
    assert row(played.one)[turn.end - 1] == half
    assert between_turns(any_stage, played)[0][0] == any_stage.processor.close_token_id


# ---- 7


def test_thinking_that_the_template_strips_from_past_turns_is_kept(qwen3_stage: Stage) -> None:
    said = "<think>\nhm\n</think>\n\nyes"
    close = qwen3_stage.processor.close_token_id
    played, heard = play(qwen3_stage, [*ids_of(qwen3_stage, said), close])
    assert heard == ["yes", "yes"]
    assert qwen3_stage.row_text(played.one).count("<think>\nhm\n</think>") == 2
    report = qwen3_stage.processor.report
    assert report.history_thinking == "stripped"
    assert any("from earlier turns" in note for note in report.notes)


# ---- 8


@pytest.mark.parametrize("name", ["demo", "qwen3"])
def test_a_tool_call_that_is_serialized_again_is_named_at_its_first_token(
    request: pytest.FixtureRequest, name: str
) -> None:
    stage = request.getfixturevalue("stage" if name == "demo" else "qwen3_stage")
    sampled = '<tool_call>\n{"name":"add","arguments":{"a":1}}\n</tool_call><|im_end|>'
    rendered = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>'
    prompt = "<|im_start|>user\nadd<|im_end|>\n<|im_start|>assistant\n"
    tokens = stage.tokenizer
    first, completion = tokens.encode(prompt), ids_of(stage, sampled)
    later = tokens.encode(prompt + rendered + "\n<|im_start|>assistant\n")
    answer = ids_of(stage, "2<|im_end|>")
    calls = [
        (first, completion, [-1.0] * len(completion)),
        (later, answer, [-1.0] * len(answer)),
    ]
    stitched = abut.stitch(calls, on_drift="split", tokenizer=tokens)
    clean, forked = stitched.transitions
    whole = [*first.tolist(), *completion]
    differs = next(i for i, id_ in enumerate(whole) if later[i] != id_)
    assert (clean.kind, forked.kind, forked.token) == ("clean", "forked", differs)
    assert forked.cause == "tool_call"
    with pytest.raises(SeamError, match=f"token {differs}"):
        abut.stitch(calls, tokenizer=tokens)


# ---- 9


def test_special_tokens_inside_content_stay_text_and_are_counted(any_stage: Stage) -> None:
    control = any_stage.tokenizer.profile()["control_tokens"]
    close = any_stage.tokenizer.decode([any_stage.processor.close_token_id])
    said = f"{close}{control[0]} {close}"
    rollout = any_stage.play(env(turns=2, texts=[said])).one
    names = [abut.trajectory.PROVENANCE[code] for code in rollout.provenance]
    content = [i for i, n in zip(row(rollout), names, strict=True) if n in ("prompt", "env")]
    assert not {any_stage.tokenizer.token_to_id(token) for token in control} & set(content)
    times = 3  # at reset, and after each of two steps
    expected = {close: 2 * times}
    expected[control[0]] = expected.get(control[0], 0) + times
    assert rollout.control_spellings == expected
    recorded = to_record(rollout)["control_spellings"]
    assert {entry["token"]: entry["count"] for entry in recorded} == expected


def test_what_developer_and_policy_spell_is_not_counted(stage: Stage) -> None:
    history = [
        {"role": "system", "content": "<|im_end|>"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "<|im_end|>"},
    ]
    tool = [{"role": "tool", "content": "<|im_start|>"}]
    rollout = stage.play(env(turns=1, texts=[tool]), task={"messages": history}).one
    assert rollout.control_spellings == {"<|im_start|>": 2}
    assert stage.play().one.control_spellings == {}


def test_a_failed_rollout_keeps_its_count(stage: Stage) -> None:
    broken = env(texts=["<|im_end|>"], step=lambda self, action: 1 / 0)
    rollout = stage.play(broken, retries=0, max_failed_frac=1.0).one
    assert rollout.failed
    assert rollout.control_spellings == {"<|im_end|>": 1}


def test_bos_stands_once_at_the_beginning() -> None:
    stage = real_stage("mistral_v3")
    bos = stage.tokenizer.token_to_id("<s>")
    played, _ = play(stage, [*ids_of(stage, "yes"), stage.processor.close_token_id])
    assert row(played.one).count(bos) == 1
    for request, _ in played.sampler.calls:
        assert (request.prompt_ids == bos).nonzero()[0].tolist() == [0]
    texts = [stage.tokenizer.encode(text).tolist() for text in ("yes", "[INST] yes[/INST]")]
    assert not any(bos in ids for ids in texts), "no piece of text gets one of its own"


def test_a_tokenizer_that_adds_bos_to_each_piece_would_be_caught() -> None:
    """The negative control: what transformers does to a delta."""
    transformers = pytest.importorskip("transformers")
    stage = real_stage("mistral_v3")
    folder = Path(os.environ["ABUT_TOKENIZERS"]) / "mistral_v3"
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(folder, add_bos_token=True)
    deltas = [hf_tokenizer(text).input_ids for text in ("[INST] a[/INST]", "[INST] b[/INST]")]
    bos = stage.tokenizer.token_to_id("<s>")
    assert [delta.count(bos) for delta in deltas] == [1, 1]


# ---- 10


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (float("nan"), "NaN, which is not finite"),
        (float("-inf"), "-inf, which is not finite"),
        (-9999.0, "-9999"),
        (None, "NaN, which is not finite"),
    ],
)
def test_a_logprob_that_is_none_stops_training_and_names_its_token(
    stage: Stage, value: float | None, named: str
) -> None:
    def change(sample: Sample) -> Sample:
        logprobs = np.asarray([*sample.logprobs[:-1], value], dtype=np.float32)
        return Sample(sample.ids, logprobs, sample.finish_reason)

    with pytest.raises(SamplerError) as caught:
        stage.play(sampler=Ended(stage.says("yes"), change))
    last = len(stage.says("yes")(None)) - 1  # type: ignore[arg-type]
    close = stage.processor.close_token_id
    start = f"rollout r0: turn 0: sampled token {last} (id {close}) has logprob {named}"
    assert str(caught.value).startswith(start)
    assert "\nhint: " in str(caught.value)


def test_an_empty_sample_ends_the_rollout_with_what_it_has(any_stage: Stage) -> None:
    def script(request: SampleRequest) -> Sequence[int]:
        return [] if request.turn else ids_of(any_stage, "yes")

    played, heard = play(any_stage, script)
    rollout = played.one
    assert (rollout.stop_reason, rollout.reward, len(heard)) == ("empty_sample", 0.5, 1)
    assert row(rollout)[-1] == ids_of(any_stage, "yes")[-1]
    nothing = any_stage.play(script=lambda request: []).one
    assert (nothing.columns, nothing.reward) == (None, None)


@pytest.mark.parametrize("array", ["ids", "logprobs", "env_mask"])
def test_arrays_off_by_one_would_be_caught(stage: Stage, array: str) -> None:
    """The negative control of `check_exact`, on which all of the above stands."""
    played, _ = play(stage, [*ids_of(stage, "yes"), stage.processor.close_token_id])
    with pytest.raises(AssertionError):
        check_exact(shifted(played.one.columns, **{array: 1}), played.calls(played.one))
