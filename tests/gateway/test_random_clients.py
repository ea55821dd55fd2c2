"""Clients that do what clients do, at random: a history that was edited is never taken for ours."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from random_clients import Clients
from random_policy import naming


@pytest.fixture(scope="module")
def clients(hf_tokenizer: Any) -> type[Clients]:
    return type("Clients", (Clients,), {"hf": naming(hf_tokenizer)})


@pytest.mark.hypothesis
def test_each_request_gets_what_was_said(clients: type[Clients]) -> None:
    run_state_machine_as_test(clients, settings=settings(max_examples=40, stateful_step_count=12))
    print(clients.figures)
