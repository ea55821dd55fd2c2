"""The official types of the protocols, read strictly: each value is theirs as a whole, or it fails.

The SDKs construct their types without a check, and drop or keep what these do not know.
"""

import json
import warnings
from collections.abc import Collection
from typing import Any

from pydantic import BaseModel, TypeAdapter


def accepted(kind: Any, value: Any, besides: Collection[str] = ()) -> Any:
    """Return a value as an official type, which has each of its fields and nothing else.

    Args:
        kind: the type, or the union of several.
        value: JSON.
        besides: fields that a type need not have, as `unknown_fields` names them.

    Raises:
        ValidationError: a field is missing, or is of another type.
        AssertionError: a field is unknown, or its value is read as another one.
        UserWarning: a value of an enumeration is unknown.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # google-genai makes a member of such a value
        typed = TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
        again = typed.model_dump(mode="json", exclude_unset=True, by_alias=True)
    assert again == value
    assert unknown_fields(typed) <= {*besides}, unknown_fields(typed)
    return typed


def unknown_fields(value: Any) -> set[str]:
    """Return the fields in a value that the types in it do not have, as `Type.field`."""
    if isinstance(value, BaseModel):
        kind = type(value)
        known = [getattr(value, name) for name in kind.model_fields]
        unknown = {f"{kind.__name__}.{name}" for name in value.model_extra or ()}
        return unknown.union(*map(unknown_fields, known))
    if isinstance(value, list | tuple):
        return set().union(*map(unknown_fields, value))
    if isinstance(value, dict):
        return set().union(*map(unknown_fields, value.values()))
    return set()
