"""Docstrings as Markdown, with links from public names and from pages of the documentation."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import griffe

from scripts.docs.public_names import SITE, places

_TITLES = {
    griffe.DocstringSectionKind.parameters: "Parameters",
    griffe.DocstringSectionKind.other_parameters: "Other parameters",
    griffe.DocstringSectionKind.returns: "Returns",
    griffe.DocstringSectionKind.yields: "Yields",
    griffe.DocstringSectionKind.raises: "Raises",
    griffe.DocstringSectionKind.attributes: "Attributes",
}
_BY_TYPE = {
    griffe.DocstringSectionKind.raises,
    griffe.DocstringSectionKind.returns,
    griffe.DocstringSectionKind.yields,
    griffe.DocstringSectionKind.warns,
}


def prose(docstring: Any, in_table: Sequence[str] = ()) -> list[str]:
    """Return a docstring as Markdown, without the attributes that a table describes."""
    if docstring is None:
        return []
    lines: list[str] = []
    for section in docstring.parse("google", warnings=False):
        if section.kind is griffe.DocstringSectionKind.text:
            lines += [*linked(section.value).splitlines(), ""]
            continue
        if section.kind is griffe.DocstringSectionKind.admonition:
            lines += [f"**{section.title}** {linked(section.value.description)}", ""]
            continue
        if section.kind is griffe.DocstringSectionKind.examples:
            for _, text in section.value:
                lines += [*text.splitlines(), ""]
            continue
        items = section.value
        if section.kind is griffe.DocstringSectionKind.attributes:
            items = [item for item in items if item.name not in in_table]
        if items:
            lines += [f"**{_TITLES.get(section.kind, section.kind.value.capitalize())}**", ""]
        for item in items:
            label = item.annotation if section.kind in _BY_TYPE else item.name
            about = linked(" ".join(item.description.split()))
            if section.kind in _BY_TYPE:
                label = linked(f"`{label}`") if label else ""
            elif label:
                label = f"`{label}`"
            lines.append(f"- {label}: {about}" if label else f"- {about}")
        lines.append("")
    return lines


def attributes_of(docstring: Any) -> dict[str, str]:
    """Return the descriptions of attributes in the docstring of their class."""
    sections = [] if docstring is None else docstring.parse("google", warnings=False)
    kind = griffe.DocstringSectionKind.attributes
    items = [item for section in sections if section.kind is kind for item in section.value]
    return {item.name: item.description for item in items}


def first_text(docstring: Any) -> str:
    """Return the text of a docstring before its sections; it may be empty."""
    if docstring is None:
        return ""
    sections = docstring.parse("google", warnings=False)
    texts = [one.value for one in sections if one.kind is griffe.DocstringSectionKind.text]
    return linked(texts[0]) if texts else ""


def linked(text: str) -> str:
    """Add links to Markdown: for public names in backticks, and for names of pages."""

    def link(match: re.Match[str]) -> str:
        place = places().get(match[1])
        return f"[{match[0]}]({place})" if place else match[0]

    text = re.sub(r"(?<!\[)`([\w.]+)`(?!\])", link, text)
    return re.sub(r"(`?)\bdocs/([\w/-]+)\.md\b\1", rf"[\g<0>]({SITE}\2/)", text)


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring."""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    sentence = re.match(r".*?[.](?=\s|$)", paragraph)
    return sentence[0] if sentence else paragraph


def text_of(lines: Iterable[str]) -> str:
    """Join lines to a page."""
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"
