"""LiteLLM in the other three dialects, which its older versions read with mistakes.

1.106.2 joins the arguments of two calls that come in one stream.
"""

from collections.abc import Callable
from typing import Any

import pytest

from abut import agent
from tests.gateway.clients.test_litellm import loop, plain, streamed
from tests.kit.clients.conversation import LOOKUP, QUESTION, SYSTEM, Heard
from tests.kit.clients.template_stage import TemplateStage, on_each_template

ENVIRONMENTS = ("harnesses",)

Play = Callable[..., Heard]


@on_each_template
@pytest.mark.parametrize("ask", [plain, streamed])
@pytest.mark.parametrize("provider", ["openai/responses", "anthropic", "gemini"])
def test_each_dialect(
    heard: Play, stage: TemplateStage, provider: str, ask: Callable[..., Any]
) -> None:
    @agent
    def solve(endpoint: Any) -> float:
        urls = {"anthropic": endpoint.anthropic_url, "gemini": endpoint.gemini_url}
        return loop(
            endpoint,
            ask,
            [LOOKUP] if stage.takes_tools else None,
            model=f"{provider}/{endpoint.model}",
            api_base=urls.get(provider, endpoint.base_url),
            max_tokens=5000,
        )

    one = heard(solve)
    first = None
    if provider == "gemini":  # it makes the system prompt a part of the first user message
        joint = stage.processor.text_joints.get("user")
        text = ("\n" if joint is None else joint).join([SYSTEM, QUESTION])
        first = [{"role": "user", "content": text}]
    one.check_same_as_env(first=first)
    assert not one.rewrites
    # Of a model that it does not know it makes the stream itself, in Responses.
    streams = ask is streamed and provider != "openai/responses"
    assert all(request.stream == streams for request in one.asked)
