"""Requests: each is the beginning of one growing array, which nobody can write to."""

import pickle

import numpy as np
import pytest

import abut
from tests.kit.data.tokenizers_made import word_level


def growing(turns: int) -> tuple[abut.Trajectory, list[np.ndarray]]:
    """A trajectory of many turns, and all its requests."""
    trajectory = abut.Trajectory(abut.Tokenizer.from_str(word_level()))
    requests = []
    for turn in range(turns):
        trajectory.append_text("ab" * (turn % 7))
        trajectory.append_text("a")
        requests.append(trajectory.request())
        trajectory.append_sampled([turn % 90] * (turn % 5), [-1.0] * (turn % 5))
    return trajectory, requests


def buffers(requests: list[np.ndarray]) -> int:
    return len({request.__array_interface__["data"][0] for request in requests})


def test_each_request_is_the_tokens_that_were_there_then() -> None:
    trajectory, requests = growing(300)
    ids = trajectory.ids
    for request, turn in zip(requests, trajectory.turns, strict=True):
        assert len(request) == turn.start
        np.testing.assert_array_equal(request, ids[: turn.start])


def test_a_turn_writes_only_what_it_adds() -> None:
    _, requests = growing(300)
    assert len(requests[-1]) > 1000
    assert buffers(requests) <= 12  # a new one where the tokens have doubled
    copied = [request.copy() for request in requests]
    assert buffers(copied) == 300  # the negative control: each a copy of the whole


def test_a_request_outlives_its_trajectory() -> None:
    _, requests = growing(40)
    expected = [request.tolist() for request in requests]
    growing(300)
    assert [request.tolist() for request in requests] == expected


def test_nobody_can_write_to_a_request() -> None:
    trajectory, (*_, request) = growing(9)
    before = trajectory.ids.tolist()
    with pytest.raises(ValueError, match="read-only"):
        request[0] = 7
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        request.setflags(write=True)
    mine = request.copy()
    mine[0] = 7
    assert request.tolist() == trajectory.ids.tolist()[: len(request)] == before[: len(request)]


def test_a_request_of_nothing_is_empty() -> None:
    request = abut.Trajectory(abut.Tokenizer.from_str(word_level())).request()
    assert (request.shape, request.dtype) == ((0,), np.int64)


def test_a_request_travels_by_pickle_without_the_rest_of_its_array() -> None:
    _, requests = growing(300)
    shared = requests[-2]
    assert shared.base is not None
    assert len(shared.base) > len(shared)
    packed = pickle.dumps(shared)
    assert len(packed) < 8 * len(shared) + 500
    np.testing.assert_array_equal(pickle.loads(packed), shared)


def test_a_tensor_of_a_request_is_a_copy() -> None:
    torch = pytest.importorskip("torch")
    _, (*_, request) = growing(9)
    tensor = torch.tensor(request)  # `torch.from_numpy` warns: it would share what is read-only
    tensor[0] = 7
    assert tensor.tolist()[1:] == request.tolist()[1:]
    assert request[0] != 7
