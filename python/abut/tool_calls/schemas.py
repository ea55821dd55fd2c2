"""The types of parameters, as the JSON schemas of tools say them.

Invariant: nothing is guessed. Text stays text unless a schema says that it is something else. All
keywords that say a type count (`type`, `enum`, `const`), wherever `$ref`, `allOf`, `anyOf`,
`oneOf`, `not` and `then`/`else` lead. `properties` or `items` alone say no type, because JSON
Schema accepts a string there.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import cached_property
from typing import Any, TypeAlias
from urllib.parse import unquote

from abut.tool_calls.literals import load_literal

# Names of Python's types, which people write into schemas by hand.
_ALIASES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}
_WORDS = ("true", "True", "false", "False", "null", "None")

Verdict: TypeAlias = bool | None
"""True or False if a schema takes or refuses a value; None if the schema does not say."""


class ToolSchema:
    """The schema of the parameters of one tool.

    Args:
        parameters: the JSON schema of the arguments.
        roots: what a `$ref` may point into, in the order in which they are tried.
    """

    def __init__(self, parameters: Any, roots: Sequence[Any] = ()) -> None:
        self._parameters = parameters
        self._roots = [parameters, *roots]

    def __contains__(self, name: str) -> bool:
        """Return whether the schema names this parameter."""
        return name in self.names

    @cached_property
    def names(self) -> frozenset[str]:
        """The parameters that the schema names."""
        parts = self._parts_first(self._parameters)
        return frozenset(name for part in parts for name in _dict(part.get("properties")))

    def typed(self, name: str, text: str) -> Any:
        """Return the text of a parameter as one of its types; as it is where no type fits."""
        if text in ("null", "None") and self._takes(name, None):
            return None
        takes_text = self._takes(name, text)
        if takes_text is not False:
            return text
        values = _values_of(text)
        for value in values:
            if self._takes(name, value) is not False:
                return value
        # Not one of the values that the schema lists: the tool may refuse it, but as a number.
        if self._takes(name, text, exact=False) is False:
            for value in values:
                if self._takes(name, value, exact=False) is not False:
                    return value
        return text

    def _takes(self, name: str, value: Any, *, exact: bool = True) -> Verdict:
        """Judge whether the parameter takes the value; without `exact`, one of an enum's type."""

        def of_value(node: Mapping[str, Any]) -> Verdict:
            return _has_type(value, node, exact)

        def of_parameter(node: Mapping[str, Any]) -> Verdict:
            return _all(self._judged(schema, of_value) for schema in _schemas_of(name, node))

        return self._judged(self._parameters, of_parameter, is_silence_ignored=True)

    def _judged(
        self,
        schema: Any,
        judge: Callable[[Mapping[str, Any]], Verdict],
        *,
        is_silence_ignored: bool = False,
    ) -> Verdict:
        """Apply `judge` to a schema and to all that the schema is composed of.

        Args:
            schema: it may hold itself; each part is judged once.
            judge: looks at the keywords of one part alone.
            is_silence_ignored: whether a choice without a verdict allows anything. The choices of a
                parameter's type do, but one that does not name the parameter does not count.
        """
        known: dict[int, Verdict] = {}

        def of(node: Any) -> Verdict:
            return known.get(id(node)) if isinstance(node, Mapping) else None

        def any_of(choices: list[Any]) -> Verdict:
            verdicts = [of(choice) for choice in choices]
            if True in verdicts:
                return True
            said = [v for v in verdicts if v is not None] if is_silence_ignored else verdicts
            return None if not said or None in said else False

        def parts(node: Mapping[str, Any]) -> Iterator[Verdict]:
            yield judge(node)
            yield from map(of, self._referred(node))
            yield from map(of, _list(node.get("allOf")))
            for union in ("anyOf", "oneOf"):
                yield any_of(_list(node.get(union)))
            if "then" in node and "else" in node:
                yield any_of([node["then"], node["else"]])
            if of(node.get("not")) is True:
                yield False

        for node in self._parts_first(schema):
            known[id(node)] = _all(parts(node))
        return of(schema)

    def _parts_first(self, schema: Any) -> Iterator[Mapping[str, Any]]:
        """Yield a schema and all that it is composed of, each once, after its own parts.

        Without recursion, since a schema may be nested deeper than Python calls.
        """
        begun: set[int] = set()
        left: list[tuple[Any, bool]] = [(schema, False)]
        while left:
            node, is_ready = left.pop()
            if is_ready:
                yield node
            elif isinstance(node, Mapping) and id(node) not in begun:
                begun.add(id(node))
                left.append((node, True))
                left += [(part, False) for part in self._referred(node)]
                for several in ("allOf", "anyOf", "oneOf"):
                    left += [(part, False) for part in _list(node.get(several))]
                left += [(node.get(one), False) for one in ("then", "else", "not")]

    def _referred(self, node: Mapping[str, Any]) -> list[Any]:
        references = [node.get(key) for key in ("$ref", "$dynamicRef")]
        return [self._found(name) for name in references if isinstance(name, str)]

    def _found(self, reference: str) -> Any:
        """Return what a `$ref` points at; None if it leads nowhere, or out of this tool."""
        for root in self._roots:
            if reference == "#" or reference.startswith("#/"):
                found = _pointed_at(root, reference)
            else:
                found = next((node for node in _nodes(root) if _is_called(node, reference)), None)
            if found is not None:
                return found
        return None


Schemas: TypeAlias = Mapping[str, ToolSchema]
"""The schema of the parameters of each tool, by its name."""


def parameter_schemas(tools: Sequence[Any] | None) -> Schemas:
    """Return the schema of each tool; with OpenAI's wrapper or without.

    Raises:
        TypeError: a tool is not a JSON schema, but for example a function.
    """
    schemas: dict[str, ToolSchema] = {}
    for k, tool in enumerate(tools or ()):
        if not isinstance(tool, dict):
            raise TypeError(
                f"tools[{k}] is not a JSON schema but {type(tool).__name__}\n"
                "hint: transformers.utils.get_json_schema returns the schema of a function"
            )
        function = tool.get("function", tool)
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            schemas[function["name"]] = ToolSchema(function.get("parameters"), [function, tool])
    return schemas


def _schemas_of(name: str, node: Mapping[str, Any]) -> list[Any]:
    """Return the schemas that the keywords of an object's schema give to one of its keys."""
    properties = _dict(node.get("properties"))
    found = [properties[name]] if name in properties else []
    found += [
        schema
        for pattern, schema in _dict(node.get("patternProperties")).items()
        if _matches(pattern, name)
    ]
    return found or [node.get("additionalProperties")]


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:  # of another dialect
        return False


def _has_type(value: Any, node: Mapping[str, Any], exact: bool) -> Verdict:
    said: list[Verdict] = []
    declared = node.get("type")
    names = [name for name in _list(declared) or [declared] if isinstance(name, str)]
    if names:
        types = {_ALIASES.get(name, name) for name in names}
        types |= {"null"} if node.get("nullable") else set()
        said.append(not types.isdisjoint(_types_of(value)))
    choices = [*_list(node.get("enum")), *([node["const"]] if "const" in node else [])]
    if choices:
        said.append(any(_is_like(value, choice, exact) for choice in choices))
    if node.get("nullable") and value is None:
        return True
    return _all(said)


def _is_like(value: Any, choice: Any, exact: bool) -> bool:
    alike = not _types_of(value).isdisjoint(_types_of(choice))
    return alike and (not exact or bool(value == choice))


def _types_of(value: Any) -> frozenset[str]:
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int):
        return frozenset({"integer", "number"})
    names = {str: "string", float: "number", list: "array", dict: "object", type(None): "null"}
    return frozenset({names.get(type(value), "")})


def _all(verdicts: Iterable[Verdict]) -> Verdict:
    said = [verdict for verdict in verdicts if verdict is not None]
    return all(said) if said else None


def _pointed_at(node: Any, pointer: str) -> Any:
    for step in pointer.split("/")[1:]:
        key = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        elif isinstance(node, dict) and key in node:
            node = node[key]
        else:
            return None
    return node


def _is_called(node: Mapping[str, Any], reference: str) -> bool:
    anchors = [node.get("$anchor"), node.get("$dynamicAnchor")]
    return reference in (node.get("$id"), *(f"#{anchor}" for anchor in anchors if anchor))


def _nodes(root: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every object in a schema, which may hold itself."""
    seen: set[int] = set()
    left = [root]
    while left:
        node = left.pop()
        if not isinstance(node, dict | list) or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, dict):
            yield node
        left.extend(node.values() if isinstance(node, dict) else node)


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _values_of(text: str) -> list[Any]:
    """Return the values that the text spells, if any; 3.0 as 3.0 and as the integer."""
    try:
        value = load_literal(text)
    except ValueError:
        return []
    if (isinstance(value, bool) or value is None) and text not in _WORDS:
        return []
    return [value, _whole(text, value)] if isinstance(value, float) else [value]


def _whole(text: str, value: float) -> int | float:
    """Return the integer that the text spells, exactly: 1e30 is not the float next to it."""
    try:
        exact = Decimal(text)
    except InvalidOperation:  # an exponent that Decimal cannot hold
        return value
    whole = int(exact)
    return whole if whole == exact else value
