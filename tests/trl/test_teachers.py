"""Teachers: the scores are those of the model for exactly the ids of a row, or there are none."""

import asyncio
import gc
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("aiohttp")

from abut.errors import TeacherError, TeacherUnavailable  # noqa: E402
from abut.trl import ModelTeacher, Teacher, TeacherScores, VllmTeacher  # noqa: E402
from abut.trl.teachers.prompt_logprobs import read_prompt_logprobs  # noqa: E402
from abut.trl.teachers.teacher import (  # noqa: E402
    Student,
    check_names,
    check_temperature,
    opened,
    score_row,
    teacher_name,
)
from tests.kit.servers.fake_server import drop, half, hang, status  # noqa: E402
from tests.kit.stage.rollouts import eventually  # noqa: E402
from tests.kit.training.teacher_server import TeacherServer, prompt_logprobs  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_thread_stays")

IDS = np.array([5, 300, 7, 7, 41, 511, 2, 90])
AT = np.array([2, 3, 6])


@pytest.fixture(scope="module")
def model(tiny_model: Any) -> Any:
    return tiny_model(1)


@pytest.fixture
def student(hf_tokenizer: Any) -> Student:
    return Student(hf_tokenizer, top_k=8, max_tokens=64)


@pytest.fixture
def serve(model: Any, hf_tokenizer: Any) -> Iterator[Callable[..., TeacherServer]]:
    servers: list[TeacherServer] = []

    def begin(*given: Any, **settings: Any) -> TeacherServer:
        server = TeacherServer(settings.pop("model", model), hf_tokenizer, *given, **settings)
        servers.append(server)
        return server.__enter__()

    yield begin
    for server in servers:
        if not server._loop.is_closed():
            server.__exit__()


def asked(
    teacher: Any,
    student: Student,
    ids: Any = IDS,
    at: Any = AT,
    top_k: int = 3,
    name: str = "default",
) -> TeacherScores:
    async def ask() -> TeacherScores:
        async with opened(teacher, student):
            return await score_row(teacher, ids, at, top_k, name, 512)

    return asyncio.run(ask())


def independent(model: Any, temperature: float = 1.0) -> Any:
    """`(T, V)` float64 logprobs of the token at each position, from float32 logits."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([IDS.tolist()])).logits[0].double() / temperature
    behind = torch.cat([torch.zeros(1, 512).double(), logits.log_softmax(-1)[:-1]])
    return behind.numpy()


def check(scores: TeacherScores, right: Any, top_k: int) -> None:
    """Each position has the best candidates and the drawn token, with their logprobs, in order."""
    assert scores.ids.shape == scores.logprobs.shape == (len(AT), top_k + 1)
    for k, position in enumerate(AT.tolist()):
        drawn = int(IDS[position])
        best = np.argsort(-right[position], kind="stable")[:top_k].tolist()
        expected = best + [drawn] * (drawn not in best)
        found = scores.ids[k][scores.ids[k] >= 0].tolist()
        assert found == expected
        logprobs = scores.logprobs[k][: len(found)]
        assert logprobs == pytest.approx(right[position][found], abs=2e-5)
        assert np.isneginf(scores.logprobs[k][len(found) :]).all()
        assert scores.drawn[k] == pytest.approx(right[position, drawn], abs=2e-5)


# ---- what is returned


@pytest.mark.parametrize("top_k", [0, 1, 8, 512])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_a_model_scores_each_token_behind_those_before_it(
    model: Any, student: Student, top_k: int, temperature: float
) -> None:
    teacher = ModelTeacher(model, temperature=temperature)
    check(asked(teacher, student, top_k=top_k), independent(model, temperature), top_k)


def test_a_model_that_keeps_all_logits_scores_the_same(model: Any, student: Student) -> None:
    class All(torch.nn.Module):  # type: ignore[misc]
        config, device = model.config, model.device
        get_input_embeddings = model.get_input_embeddings

        def forward(self, input_ids: Any, use_cache: bool) -> Any:
            return model(input_ids=input_ids, use_cache=use_cache)

    check(asked(ModelTeacher(All()), student), independent(model), 3)


@pytest.mark.parametrize("top_k", [0, 1, 8])
def test_a_server_scores_as_the_model_does(
    serve: Any, model: Any, student: Student, top_k: int
) -> None:
    server = serve()
    check(asked(VllmTeacher(server.url), student, top_k=top_k), independent(model), top_k)
    assert server.rows == [tuple(IDS.tolist())]


def test_a_wrong_row_would_be_found(serve: Any, student: Student, tiny_model: Any) -> None:
    """The negative control of the tests above."""
    server = serve(model=tiny_model(2))
    with pytest.raises(AssertionError):
        check(asked(VllmTeacher(server.url), student), independent(tiny_model(1)), 3)


class Fixed:
    """A teacher of a user's own, which returns what it is given."""

    def __init__(self, *returned: Any) -> None:
        self.returned = returned

    async def score(self, *_: Any) -> Any:
        return self.returned


def scored(ids: Any, logprobs: Any, drawn: Any, *, top_k: int = 2) -> TeacherScores:
    row, at = np.array([1, 10, 10]), np.array([1, 2])
    return asyncio.run(score_row(Fixed(ids, logprobs, drawn), row, at, top_k, "own", 100))


def test_a_teacher_of_ones_own_is_one() -> None:
    assert isinstance(Fixed(), Teacher)
    assert not isinstance(object(), Teacher)


def test_candidates_are_sorted_and_those_that_do_not_count_left_out() -> None:
    nan, inf = math.nan, math.inf
    ids = [[3, 2, 10, 7], [4, 100, 5, 6]]
    logprobs = [[-3.0, -1.0, -4.0, nan], [-inf, -0.1, -2.0, -1.5]]
    found = scored(ids, logprobs, [-4.0, nan])
    assert found.ids.tolist() == [[2, 3, 10], [6, 5, -1]]
    assert found.logprobs.tolist() == [[-1.0, -3.0, -4.0], [-1.5, -2.0, -inf]]
    assert found.drawn.tolist()[0] == -4.0
    assert math.isnan(found.drawn[1])


def test_the_drawn_token_is_a_candidate_wherever_it_is_said() -> None:
    ids, logprobs = [[3, 2], [10, 10]], [[-1.0, -2.0], [-1.0, -1.0]]
    found = scored(ids, logprobs, [-5.0, -1.0])
    assert found.ids.tolist() == [[3, 2, 10], [10, -1, -1]]
    assert found.drawn.tolist() == [-5.0, -1.0]
    only = scored(ids, logprobs, [-5.0, -1.0], top_k=0)
    assert only.ids.tolist() == [[10], [10]]


def test_equal_logprobs_stay_in_the_teachers_order() -> None:
    found = scored([[9, 8], [8, 9]], [[-1.0, -1.0]] * 2, [-2.0, -2.0])
    assert found.ids.tolist() == [[9, 8, 10], [8, 9, 10]]


def test_many_candidates_are_checked_on_a_thread_with_the_same_result(monkeypatch: Any) -> None:
    ids, logprobs = [[3, 2, 10, 7], [4, 100, 5, 6]], [[-3.0, -1.0, -4.0, -9.0]] * 2
    here = scored(ids, logprobs, [-4.0, -9.0])
    monkeypatch.setattr("abut.trl.teachers.teacher._QUICK", 0)
    there = scored(ids, logprobs, [-4.0, -9.0])
    assert all(np.array_equal(a, b) for a, b in zip(here, there, strict=True))


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (([[1]], [[0.0]], [0.0]), r"ids \(1, 1\), logprobs \(1, 1\) and drawn \(1,\) for 2 posit"),
        (([[1], [1]], [[0.0], [0.0]]), "expected \\(ids, logprobs, drawn\\)"),
        (([[1], [1]], [[9.0], [3.5]], [0.0, 0.0]), "not logprobs: the probabilities of one token"),
        (([["a"], ["b"]], [[0.0], [0.0]], [0.0, 0.0]), "ValueError: invalid literal for int"),
    ],
)
def test_what_is_not_scores_ends_the_run(returned: Any, text: str) -> None:
    row, at = np.array([1, 10, 10]), np.array([1, 2])
    with pytest.raises(TeacherError, match=text) as raised:
        asyncio.run(score_row(Fixed(*returned), row, at, 2, "own"))
    assert not isinstance(raised.value, TeacherUnavailable)


@pytest.mark.parametrize("raises", [ConnectionResetError, TimeoutError])
def test_a_row_that_a_teacher_of_ones_own_could_not_score_is_told_from_a_bug(raises: Any) -> None:
    class Fails:
        async def score(self, *_: Any) -> Any:
            raise raises("gone")

    row, at = np.array([1, 10]), np.array([1])
    with pytest.raises(TeacherUnavailable, match=f"did not score a row: {raises.__name__}: gone"):
        asyncio.run(score_row(Fails(), row, at, 2, "own"))


# ---- answers of servers


def answer(said: Any) -> bytes:
    choice = {"text": '"prompt_logprobs": [1', "prompt_logprobs": said, "more": [{}]}
    return json.dumps({"choices": [choice], "usage": {}}).encode()


def test_an_answer_is_read_whatever_its_texts_say(model: Any) -> None:
    said = prompt_logprobs(model, IDS.tolist(), 2)
    scores = read_prompt_logprobs(answer(said), IDS, AT, 2)
    check(score_of(scores), independent(model), 2)


def score_of(scores: TeacherScores) -> TeacherScores:
    from abut.trl.teachers.teacher import checked_scores

    return checked_scores(scores, IDS[AT], 2, "default")


def test_positions_without_scores_and_minus_infinity_have_none(model: Any) -> None:
    said = prompt_logprobs(model, IDS.tolist(), 2)
    said[2], said[3][str(IDS[3])]["logprob"] = None, -9999.0
    scores = score_of(read_prompt_logprobs(answer(said), IDS, AT, 2))
    assert (scores.ids[0] == -1).all()
    assert np.isnan(scores.drawn[:2]).all()
    assert np.isfinite(scores.drawn[2])


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b'{"choices": []}', "has no prompt_logprobs"),
        (answer([None] * 7), "scored 7 tokens of a row of 8"),
        (answer([None, *[{"5": {"logprob": -1.0, "rank": 1}}] * 7]), "of token 2, id 7, are"),
        (answer([None] * 8)[:-45], "not JSON"),
    ],
)
def test_another_answer_is_an_error(content: bytes, text: str) -> None:
    with pytest.raises(TeacherError, match=text):
        read_prompt_logprobs(content, IDS, AT, 2)


# ---- servers that fail


@pytest.mark.parametrize("fault", [drop, half, status(503), status(500), status(429)])
def test_another_server_is_asked(serve: Any, model: Any, student: Student, fault: Any) -> None:
    broken, well = serve([fault] * 50), serve()
    teacher = VllmTeacher({"default": [broken.url, well.url]})

    async def ask() -> list[TeacherScores]:
        async with opened(teacher, student):
            rows = [np.append(IDS[:-1], k) for k in range(8)]
            return await asyncio.gather(
                *(score_row(teacher, row, AT, 3, "default") for row in rows)
            )

    for scores in asyncio.run(ask()):
        check(scores, independent(model), 3)
    assert len({*well.rows}) > 1


def test_a_row_is_given_up_at_its_deadline_and_the_next_is_scored(
    serve: Any, model: Any, student: Student
) -> None:
    server = serve()
    teacher = VllmTeacher(server.url, give_up_s=1.0)
    port = server.port

    async def ask() -> None:
        async with opened(teacher, student):
            server.__exit__()
            with pytest.raises(TeacherUnavailable) as raised:
                await score_row(teacher, IDS, AT, 3, "default")
            assert "a row of 8 tokens was not scored within give_up_s=1:" in str(raised.value)
            assert f"{server.url} refuses connections" in str(raised.value)
            serve(port=port)
            check(await score_row(teacher, IDS, AT, 3, "default"), independent(model), 3)

    asyncio.run(ask())


def test_a_server_that_hangs_costs_a_row_and_the_connection_is_closed(
    serve: Any, student: Student
) -> None:
    server = serve([hang])
    with pytest.raises(TeacherUnavailable):
        asked(VllmTeacher(server.url, give_up_s=0.5), student)
    assert eventually(lambda: not server.hanging)


def test_nobody_at_the_address_is_said(serve: Any, student: Student) -> None:
    gone = serve()
    gone.__exit__()
    with pytest.raises(TeacherUnavailable, match=r"passed its checks within give_up_s=0\.2"):
        asked(VllmTeacher(gone.url, give_up_s=0.2), student)


def test_equal_rows_that_wait_are_one_request(serve: Any, student: Student) -> None:
    server = serve(delay_s=0.2)
    teacher = VllmTeacher({"a": server.url})

    async def ask() -> None:
        async with opened(teacher, student):
            rows = [IDS, IDS.copy(), IDS[:-1]]
            at = AT[:2]
            await asyncio.gather(*(score_row(teacher, row, at, 3, "a") for row in rows))

    asyncio.run(ask())
    assert sorted(map(len, server.rows)) == [7, 8]


def test_a_row_that_nobody_waits_for_any_more_may_fail(serve: Any, student: Student) -> None:
    server = serve(delay_s=0.3)
    teacher = VllmTeacher(server.url)
    complaints: list[Any] = []

    async def ask() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, it: complaints.append(it))
        async with opened(teacher, student):
            row = np.append(IDS, 600)  # which the server refuses, after a while
            waiting = asyncio.create_task(score_row(teacher, row, AT, 3, "default"))
            await asyncio.sleep(0)
            (named,) = teacher._open.values()
            while not named["default"].asked:
                await asyncio.sleep(0.001)
            waiting.cancel()
            while named["default"].asked:
                await asyncio.sleep(0.001)

    asyncio.run(ask())
    gc.collect()
    assert complaints == []


def test_no_more_rows_are_asked_for_at_once_than_may(serve: Any, student: Student) -> None:
    server = serve(delay_s=0.05)
    at_once: list[int] = []
    inner = server._answer

    async def count(*given: Any) -> None:
        at_once.append(len(server._serving))
        await inner(*given)

    server._answer = count
    teacher = VllmTeacher(server.url, max_requests=2)

    async def ask() -> None:
        async with opened(teacher, student):
            rows = [np.append(IDS[:-1], k) for k in range(6)]
            await asyncio.gather(*(score_row(teacher, r, AT, 3, "default") for r in rows))

    asyncio.run(ask())
    assert len(server.rows) == 6
    assert max(at_once) <= 2


# ---- refusals


def refusal(teacher: Any, student: Student, **ask: Any) -> str:
    with pytest.raises(TeacherError) as raised:
        asked(teacher, student, **ask)
    assert not isinstance(raised.value, TeacherUnavailable)
    return str(raised.value)


def test_another_tokenizer_is_refused(serve: Any, student: Student, hf_tokenizer: Any) -> None:
    server = serve()
    server.hf_tokenizer = lambda text, **_: {
        "input_ids": [*hf_tokenizer(text, **_)["input_ids"][:5], 99, 98]
    }
    text = refusal(VllmTeacher(server.url), student)
    assert (
        f"at {server.url} has a different tokenizer than the student: token 5 of a test text is"
        in text
    )


def test_a_server_that_holds_too_little_is_refused(serve: Any, hf_tokenizer: Any) -> None:
    server = serve(context=64)
    text = refusal(VllmTeacher(server.url), Student(hf_tokenizer, 3, 64))
    assert "has a context of 64 tokens but needs 65" in text
    assert (
        "hint: start the server with --max-model-len 65, or set "
        "RolloutConfig(max_context_tokens=63)"
    ) in text
    asked(VllmTeacher(server.url), Student(hf_tokenizer, 3, 63))


def test_too_many_candidates_are_refused(serve: Any, hf_tokenizer: Any) -> None:
    server = serve(max_logprobs=20)
    text = refusal(VllmTeacher(server.url), Student(hf_tokenizer, 21, 64))
    assert "greater than max allowed: 20" in text
    assert "hint: start the server with --max-logprobs 21" in text


def test_a_server_that_gives_logits_is_refused(serve: Any, student: Student) -> None:
    def change(said: list[Any]) -> None:
        for entry in filter(None, said):
            for each in entry.values():
                each["logprob"] += 10

    text = refusal(VllmTeacher(serve(change=change).url), student)
    assert "hint: start vLLM with --logprobs-mode raw_logprobs" in text


def test_a_row_that_the_server_refuses_ends_the_run(serve: Any, student: Student) -> None:
    text = refusal(VllmTeacher(serve().url), student, ids=np.append(IDS, 600))
    assert "answers 400 to /v1/completions: Token id 600 is out of vocabulary" in text
    assert "hint: use a teacher with the student's tokenizer" in text


def test_a_model_that_is_not_served_is_refused(serve: Any, student: Student) -> None:
    server = serve()
    teacher = VllmTeacher({"math": server.url}, models={"math": "other"})
    text = refusal(teacher, student, name="math")
    assert "does not serve the model 'other'; it serves: 'teacher'" in text


def test_a_model_refuses_what_it_does_not_hold(model: Any, student: Student) -> None:
    most = model.config.max_position_embeddings
    long = Student(student.tokenizer, 3, most + 1)
    assert f"has a context of {most} tokens" in refusal(ModelTeacher(model), long)
    text = refusal(ModelTeacher(model), student, ids=np.append(IDS, 600))
    assert "has a vocabulary of 512 tokens, but a row has token 600" in text


def test_a_teacher_that_is_not_open_says_so() -> None:
    with pytest.raises(TeacherError, match=r"is not open\nhint: async with teacher\.open"):
        asyncio.run(VllmTeacher("http://a").score(IDS, AT, 1, "default"))


@pytest.mark.parametrize(
    ("urls", "more", "text"),
    [
        ({}, {}, "URLs for the names \\[\\]"),
        ({"a": []}, {}, "expected at least one"),
        (["http://a", "http://a/v1"], {}, "no address twice"),
        ("http://a", {"models": {"b": "x"}}, "has the names \\['b'\\]"),
        ("a:8000", {}, "an address starts with http"),
        ("http://u:p@a", {"api_key": "k"}, "pass one of the two"),
        ("http://a", {"give_up_s": 0}, "must be more than 0"),
    ],
)
def test_addresses_are_checked(urls: Any, more: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        VllmTeacher(urls, **more)


def test_a_temperature_is_one_that_the_teacher_has(model: Any) -> None:
    check_temperature(ModelTeacher(model, temperature=2.0), 2.0)
    check_temperature(VllmTeacher("http://a"), 1.0)
    with pytest.raises(ValueError, match=r"computes prompt_logprobs only at temperature 1"):
        check_temperature(VllmTeacher("http://a"), 2.0)
    with pytest.raises(ValueError, match="computes them at temperature 1"):
        check_temperature(Fixed(), 0.5)


# ---- names


MATH, CODE = "http://a", "http://b"


def test_a_row_names_its_teacher() -> None:
    two = VllmTeacher({"math": MATH, "code": CODE})
    assert teacher_name(two, {"teacher_id": "code"}) == "code"
    assert teacher_name(VllmTeacher({"math": MATH}), {"teacher_id": "other"}) == "math"
    assert teacher_name(Fixed(), {}) == "default"
    for columns in {"teacher_id": "art"}, {}:
        with pytest.raises(ValueError, match="but the teachers are: 'math', 'code'"):
            teacher_name(two, columns)


def test_names_are_those_of_the_dataset_and_the_trainer() -> None:
    datasets = pytest.importorskip("datasets")
    two = VllmTeacher({"math": MATH, "code": CODE})
    rows = datasets.Dataset.from_dict({"prompt": ["a", "b"], "teacher_id": ["math", "code"]})
    check_names(two, rows, ["code", "math"])
    check_names(VllmTeacher("http://a"), rows.remove_columns("teacher_id"), ["anything"])
    with pytest.raises(ValueError, match=r"args\.teacher_server_urls has 'default'"):
        check_names(two, rows, ["default"])
    with pytest.raises(ValueError, match="no column 'teacher_id'"):
        check_names(two, rows.remove_columns("teacher_id"))
    wrong = datasets.Dataset.from_dict({"prompt": ["a", "b"], "teacher_id": ["math", "art"]})
    with pytest.raises(ValueError, match="row 1 of the dataset has teacher_id='art'"):
        check_names(two, wrong)
