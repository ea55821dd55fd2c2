"""What a record is made of: one schema for JSON lines and for Parquet.

Invariant: every record has every field, each always of the same type or null, so that what reads a
file need not guess. `docs/records.md` says what each one means.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

SCHEMA_VERSION = 2

Type: TypeAlias = "str | list[Any] | dict[str, Any]"
"""The name of an Arrow type, a list of one, or a struct."""

_COLUMNS: dict[str, Type] = {
    "prompt_ids": ["int32"],
    "completion_ids": ["int32"],
    "env_mask": ["uint8"],
    "logprobs": ["float32"],
    "provenance": ["uint8"],
    "versions": ["int32"],
}

ROLLOUT: Mapping[str, Type] = {
    "schema_version": "int32",
    "run_id": "string",
    "rollout_id": "string",
    "time": "float64",
    "rank": "int32",
    "step": "int64",
    "mode": "string",
    "group": "int64",
    "place": "int32",
    "seed": "string",
    "episode_seed": "int64",
    "columns": "string",
    "tokenizer": "string",
    **_COLUMNS,
    "turns": [
        {
            "start": "int32",
            "end": "int32",
            "finish_reason": "string",
            "generate_s": "float64",
            "env_s": "float64",
            "reward": "float64",
            "stop_token": "int32",
            "stop_string": "string",
            "stop_inside": "bool_",
            "model_version": "string",
            "newest_version": "int32",
        }
    ],
    "branches": [{**_COLUMNS, "cause": "string", "delivered": "bool_"}],
    "seams": [{"kind": "string", "exact": "bool_"}],
    "messages": [{"role": "string", "content": "string", "extra": "string"}],
    "tools": "string",
    "control_spellings": [{"token": "string", "count": "int64"}],
    "reward": "float64",
    "stop_reason": "string",
    "error": "string",
    "traceback": "string",
    "attempts": "int32",
    "attempt_errors": ["string"],
    "attempt_tracebacks": ["string"],
    "seconds": "float64",
    "extras": "string",
    "client_rewrites": [{"rule": "string", "count": "int64"}],
}
"""The fields of a rollout."""

SCORES: Mapping[str, Type] = {
    "schema_version": "int32",
    "run_id": "string",
    "rollout_id": "string",
    "time": "float64",
    "rewards": [{"name": "string", "value": "float64"}],
    "total": "float64",
    "advantage": "float64",
}
"""The fields of what reward functions and the trainer made of a rollout."""

TOGETHER = {"traceback": ("traceback", "attempt_tracebacks")}
"""Fields that are left out together, by the name that says so."""


def arrow_schema(fields: Mapping[str, Type]) -> Any:
    """The schema of a Parquet file (`pyarrow.Schema`), for `datasets` and for pyarrow.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    pyarrow = import_pyarrow()

    def of(type_: Type) -> Any:
        if isinstance(type_, str):
            return getattr(pyarrow, type_)()
        if isinstance(type_, list):
            return pyarrow.list_(of(type_[0]))
        return pyarrow.struct([(name, of(inner)) for name, inner in type_.items()])

    return pyarrow.schema([(name, of(type_)) for name, type_ in fields.items()])


def import_pyarrow() -> Any:
    """pyarrow, which `datasets` brings.

    Raises:
        MissingExtraError: it is not installed.
    """
    from abut.errors import MissingExtraError

    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError(
            "records in Parquet need pyarrow: pip install 'abut[parquet]'\n"
            "hint: a path that ends in .jsonl is written without it"
        ) from error
    return pyarrow


def type_name(type_: Type) -> str:
    """The type as documents write it."""
    if isinstance(type_, str):
        return type_.removesuffix("_")
    if isinstance(type_, list):
        return f"list of {type_name(type_[0])}"
    return "{" + ", ".join(f"{name}: {type_name(inner)}" for name, inner in type_.items()) + "}"
