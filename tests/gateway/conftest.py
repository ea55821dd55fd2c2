"""A gateway without a trainer, whose policy says the texts of one conversation in each rollout."""

from collections.abc import Iterator
from typing import Any

import pytest

from abut.gateway.server.gateway import Gateway
from tests.kit.clients.dialect_talks import TEXTS
from tests.kit.stage.agents import says, serving
from tests.kit.stage.rollouts import Recording, Stage


@pytest.fixture
def sampler(stage: Stage) -> Recording:
    return says(stage, *TEXTS)


@pytest.fixture
def gateway(sampler: Recording, hf_tokenizer: Any) -> Iterator[Gateway]:
    with serving(sampler, hf_tokenizer) as gateway:
        yield gateway
