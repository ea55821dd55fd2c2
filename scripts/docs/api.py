"""Write the API reference from the docstrings: every public name, with a page per module."""

import re
from collections.abc import Iterator
from typing import Any

import griffe

from scripts.docs.docstrings import (
    attributes_of,
    first_sentence,
    first_text,
    linked,
    prose,
    text_of,
)
from scripts.docs.public_names import (
    ABUT,
    FOLDER,
    MADE,
    PAGES,
    SETTINGS,
    SITE,
    names_of,
    package_at,
)


def pages() -> dict[str, str]:
    """Return the pages of the API by their path below `docs`."""
    found = {f"{FOLDER}/index.md": _first_page()}
    return found | {f"{FOLDER}/{page}.md": _page(page) for page in PAGES}


# ---- Pages


def _first_page() -> str:
    lines = [
        "# API",
        "",
        "These are the public names of abut. `import abut` has the names of the first table; "
        "other modules are imported by their names.",
        "",
        "| `abut.` | |",
        "|---|---|",
    ]
    for page, names in ABUT.items():
        for name in names.split():
            about = first_sentence(package_at(f"abut.{name}").docstring.value)
            lines.append(f"| [`{name}`]({page}.md#abut.{name}) | {linked(about)} |")
    lines += ["", f"Its errors are on [a page of their own]({SITE}reference/errors/)."]
    lines += ["", "| module | |", "|---|---|"]
    for page, (_, modules) in PAGES.items():
        for module in modules:
            about = first_sentence(package_at(module).docstring.value)
            lines.append(f"| [`{module}`]({page}.md#{module}) | {linked(about)} |")
    return text_of(lines)


def _page(page: str) -> str:
    title, modules = PAGES[page]
    is_module = title == modules[0]
    heading = f"# `{title}` {{ #{title} }}" if is_module else f"# {title}"
    lines = [heading, ""]
    if is_module:
        lines += prose(package_at(title).docstring)
    else:
        *names, last = [f"`{name}`" for name in ABUT[page].split()]
        lines += [f"Import {', '.join(names)} and {last} from `abut`.", ""]
        for name in ABUT[page].split():
            lines += _described(f"abut.{name}", package_at(f"abut.{name}"))
    for module in modules:
        if not is_module:
            lines += [
                f"## Module `{module}` {{ #{module} }}",
                "",
                *prose(package_at(module).docstring),
            ]
        for name in names_of(module):
            path = f"{module}.{name}"
            lines += _described(path, package_at(MADE.get(path, path)))
    return text_of(lines)


def _described(path: str, it: Any) -> list[str]:
    """Return the section of a public name."""
    name = path.rpartition(".")[2]
    lines = [f"## `{name}` {{ #{path} }}", ""]
    if path in MADE:
        return [*lines, *prose(it.docstring), ""]
    members = _members(path, it) if it.is_class else []
    # The table of attributes has what the docstring says about them.
    in_table = re.findall(r'^\| <a id="[^"]+"></a>`(\w+)`', "\n".join(members), re.MULTILINE)
    lines += [*_code(_header(it, name)), "", *_aliases(it), *prose(it.docstring, in_table), ""]
    return lines + members


def _members(path: str, cls: Any) -> list[str]:
    """Return the public members of a class: a table of attributes, then its methods."""
    public = [one for name, one in cls.members.items() if not name.startswith("_")]
    top = []
    if path in SETTINGS:
        address = f"{SITE}reference/settings/#{path}"
        top = [f"[Settings]({address}) lists its fields, their defaults and their meaning.", ""]
        public = [one for one in public if one.is_function or "property" in one.labels]
    methods = [one for one in public if one.is_function]
    inside = [(one.lineno, one.endlineno) for one in cls.members.values() if one.is_function]
    told = attributes_of(cls.docstring)
    lines = []
    for one in public:
        in_method = any(a <= one.lineno <= b for a, b in inside) and "property" not in one.labels
        if one.is_attribute and (one.annotation or not in_method):
            kind = one.value if _is_enum(cls) else one.annotation
            kind = "" if kind is None else f"`{kind}`".replace("|", "\\|").replace("'", '"')
            about = first_text(one.docstring) or linked(told.get(one.name, ""))
            about = " ".join(about.split()).replace("|", "\\|")
            anchor = f'<a id="{path}.{one.name}"></a>'
            lines.append(f"| {anchor}`{one.name}` | {kind} | {about} |")
    if lines:
        what = "value" if _is_enum(cls) else "type"
        lines = [f"| attribute | {what} | |", "|---|---|---|", *lines, ""]
    lines = top + lines
    for one in methods:
        lines += [f"### `{one.name}` {{ #{path}.{one.name} }}", ""]
        lines += [*_code(_header(one, one.name)), "", *_aliases(one)]
        lines += [*prose(one.docstring), ""]
    return lines


def _is_enum(cls: Any) -> bool:
    return any("Enum" in str(base) for base in cls.bases)


# ---- Signatures


def _code(text: str) -> list[str]:
    return ["```python", *text.replace("'", '"').splitlines(), "```"]


def _header(it: Any, name: str) -> str:
    """Return the header of a definition, with one parameter per line if there are many."""
    if it.is_attribute:
        return f"{name}: {it.annotation}" if it.annotation else f"{name} = {it.value}"
    prefix = "class " if it.is_class else "def "
    function = _signature_of(it)
    if function is None:
        bases = [str(base) for base in it.bases if not str(base).startswith("_")]
        return f"class {name}({', '.join(bases)})" if bases else f"class {name}"
    if "async" in function.labels:
        prefix = "async def "
    given = [p for p in function.parameters if p.name not in ("self", "cls")]
    parameters = _parameters(given)
    returns = "" if it.is_class or not function.returns else f" -> {_shown(function.returns)}"
    line = f"{prefix}{name}({', '.join(parameters)}){returns}"
    if len(line) <= 88:
        return line
    inside = "".join(f"    {parameter},\n" for parameter in parameters)
    return f"{prefix}{name}(\n{inside}){returns}"


def _signature_of(it: Any) -> Any:
    """Return the function whose parameters a header shows; for a class, its constructor."""
    if not it.is_class:
        return it if it.is_function else None
    function = it.members.get("__init__") or it.members.get("__new__")
    if function is None or _is_protocol(it) or _is_enum(it):
        return None
    if "dataclass" in it.labels and len(function.parameters) > 10:
        return None  # the table of its attributes says the same
    return function


def _shown(annotation: Any) -> str:
    """Return an annotation in which private aliases are replaced by their values."""
    text = str(annotation)
    for name in _names_in(annotation):
        if str(name).startswith("_") and (meaning := _meaning(name)):
            text = re.sub(rf"\b{name}\b", lambda _, meaning=meaning: meaning, text)
    return text


def _is_protocol(cls: Any) -> bool:
    return any(str(base).startswith("Protocol") for base in cls.bases)


def _parameters(given: list[Any]) -> list[str]:
    found: list[str] = []
    kinds = griffe.ParameterKind
    for k, parameter in enumerate(given):
        before = given[k - 1].kind if k else None
        if before is kinds.positional_only and parameter.kind is not kinds.positional_only:
            found.append("/")
        if parameter.kind is kinds.keyword_only and before not in (
            kinds.keyword_only,
            kinds.var_positional,
        ):
            found.append("*")
        stars = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(parameter.kind, "")
        text = stars + parameter.name
        if parameter.annotation is not None:
            text += f": {_shown(parameter.annotation)}"
        if parameter.default is not None and not stars:
            default = str(parameter.default)
            if default.startswith("_help("):  # a field and its help text
                default = str(parameter.default.arguments[0])
            default = default if len(default) < 60 and "(" not in default else "..."
            text += f" = {default}" if parameter.annotation is not None else f"={default}"
        found.append(text)
    if given and given[-1].kind is kinds.positional_only:
        found.append("/")
    return found


def _aliases(it: Any) -> list[str]:
    """Return the value of each type alias of the package in a signature, one per line."""
    function = _signature_of(it)
    if function is None:
        return []
    found: dict[str, str] = {}
    annotations = [parameter.annotation for parameter in function.parameters]
    for expression in [*annotations, function.returns]:
        for name in _names_in(expression):
            if not str(name).startswith("_") and (meaning := _meaning(name)):
                found[str(name)] = meaning
    return [f"- `{name}` is `{meaning}`" for name, meaning in found.items()] + [""] * bool(found)


def _names_in(expression: Any) -> Iterator[Any]:
    if isinstance(expression, griffe.ExprName):
        yield expression
    elif isinstance(expression, griffe.Expr):
        for part in expression.iterate(flat=True):
            if isinstance(part, griffe.ExprName):
                yield part


def _meaning(name: Any) -> str | None:
    """Return the value of a type alias of the package, or None for any other name."""
    try:
        target = (
            package_at(name.canonical_path) if name.canonical_path.startswith("abut.") else None
        )
    except KeyError:
        return None
    if target is None or not target.is_attribute or target.value is None:
        return None
    value = " ".join(str(target.value).split())
    if re.fullmatch(r"'[^']*'|\"[^\"]*\"", value):
        value = value[1:-1]  # an annotation that is a string
    return value.replace("'", '"') if len(value) < 200 else None
