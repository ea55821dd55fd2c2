"""Settings by which clients find an endpoint: environment variables, and options of Codex.

Invariant: these settings send a client's calls to the endpoint, and turn off its telemetry as far
as variables and options can. gemini-cli also needs a settings file.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

ClientKind: TypeAlias = Literal[
    "claude-code", "codex", "gemini-cli", "openai", "anthropic", "google"
]

KNOWN_MODELS = {"claude-code": "claude-sonnet-4-5", "codex": "gpt-5.5-codex"}
"""A model name that each program knows, because unknown models get another prompt."""


def variables_of(kind: ClientKind, base_url: str, root_url: str, api_key: str) -> dict[str, str]:
    """Return the variables that a client needs, see `Endpoint.env`.

    Args:
        kind: the client.
        base_url: the address for clients of OpenAI's protocols, with `/v1`.
        root_url: the address for other clients, which append the version themselves.
        api_key: the key for both.

    Raises:
        ValueError: there is no such kind.
    """
    anthropic = {"ANTHROPIC_BASE_URL": root_url, "ANTHROPIC_API_KEY": api_key}
    gemini = {"GOOGLE_GEMINI_BASE_URL": root_url}
    variables: dict[str, dict[str, str]] = {
        "claude-code": anthropic
        | {
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_BUG_COMMAND": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_TELEMETRY": "1",
        },
        "codex": {"OPENAI_API_KEY": api_key},  # it reads the address from its options alone
        "gemini-cli": gemini | {"GEMINI_API_KEY": api_key, "GEMINI_TELEMETRY_ENABLED": "false"},
        "openai": {
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_KEY": api_key,
            # openai-agents would send traces to OpenAI itself, with this key.
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
        },
        "anthropic": anthropic,
        # google-genai prefers this key to GEMINI_API_KEY, which may be set as well, and Vertex
        # to either.
        "google": gemini | {"GOOGLE_API_KEY": api_key, "GOOGLE_GENAI_USE_VERTEXAI": "false"},
    }
    if kind not in variables:
        raise ValueError(
            f"Endpoint.env({kind!r}): expected one of {', '.join(map(repr, variables))}\n"
            "hint: for any other client, use endpoint.base_url, .anthropic_url or .gemini_url, "
            "and endpoint.api_key"
        )
    return variables[kind]


def codex_args(base_url: str, max_context_tokens: int | None) -> list[str]:
    """Return the options for Codex, see `Endpoint.codex_args`."""
    # Codex reads values as TOML; JSON writes texts, booleans and numbers as TOML does.
    settings = _paths_of(codex_settings(base_url, max_context_tokens))
    values = [f"{path}={json.dumps(value)}" for path, value in settings]
    return [option for value in values for option in ("-c", value)]


def codex_settings(base_url: str, max_context_tokens: int | None) -> dict[str, Any]:
    """Return the settings of a `config.toml` for Codex, as nested tables."""
    provider = {
        "name": "abut",
        "base_url": base_url,
        "env_key": "OPENAI_API_KEY",
        "wire_api": "responses",
    }
    settings: dict[str, Any] = {
        "model_provider": "abut",
        "model_providers": {"abut": provider},
        "analytics": {"enabled": False},
        "check_for_update_on_startup": False,
        "feedback": {"enabled": False},
        "otel": {"exporter": "none"},
    }
    if max_context_tokens is not None:
        # Codex compacts a history before the context is full, but stops if a server reports a full
        # context.
        settings["model_context_window"] = max_context_tokens
    return settings


def _paths_of(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each setting, such as `otel.exporter`."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _paths_of(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
