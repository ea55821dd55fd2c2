"""Packages that extras bring: the versions that abut takes, and which of them exclude each other.

Invariant: before abut imports a package, an error names it if it is missing, too old, or installed
next to versions that it does not accept. The import itself would fail somewhere inside the package,
with the name of an unrelated module.
"""

import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distributions, requires, version
from typing import NamedTuple

from abut.errors import MissingExtraError


class Extra(NamedTuple):
    """A package that an extra of abut installs.

    Attributes:
        package: its name in package indexes.
        versions: the versions that abut takes.
        python: the oldest Python that the package takes.
        needing: what of abut needs it; empty: the module of the extra's name.
    """

    package: str
    versions: str
    python: tuple[int, int] = (3, 11)
    needing: str = ""


EXTRAS = {
    "eval_protocol": Extra("eval-protocol", ">=0.3.33"),
    "harbor": Extra("harbor", ">=0.26,<0.27", (3, 12)),
    "inspect_ai": Extra("inspect-ai", ">=0.3.277"),
    "mcp": Extra("mcp", ">=2.3,<3", needing="tool_env(mcp=…)"),
    "verifiers": Extra("verifiers", ">=0.1.9,<0.5"),
}
"""The extras that bring environments or tools, by name."""

_CONTESTED = ("mcp", "openai")
"""The packages of which environments need conflicting versions."""


def require_extra(name: str) -> str:
    """Check the installed package of an extra and its requirements; return its version.

    Args:
        name: a key of `EXTRAS`.

    Raises:
        MissingExtraError: the package is missing, has a version that abut does not support, or
            needs another version of an installed package; then the error names both.
    """
    extra = EXTRAS[name]
    needing = extra.needing or f"abut.{name}"
    installed = installed_version(extra.package)
    if installed is None:
        hint = f"pip install 'abut[{name}]'"
        if sys.version_info < extra.python:
            hint = f"{extra.package} needs Python {'.'.join(map(str, extra.python))} or later"
        raise MissingExtraError(f"{needing} needs {extra.package}: {hint}")
    if not _takes(extra.versions, installed):
        other = _other_side(extra.package, extra.versions, installed)
        raise MissingExtraError(
            f"{needing} needs {extra.package}{extra.versions}, but {installed} is installed"
            + (other or f"\nhint: pip install 'abut[{name}]'")
        )
    for by, package, specifier in _contested(extra.package):
        through = "" if by == extra.package else f", by its {by} {installed_version(by)},"
        check_beside(f"{extra.package} {installed}{through}", package, specifier)
    return installed


def check_beside(needing: str, package: str, specifier: str) -> None:
    """Check that a package is installed in a version that something needs.

    Args:
        needing: the package or model that needs it, for the error.
        package: its name in package indexes.
        specifier: the versions that are needed, such as `>=3.4`.

    Raises:
        MissingExtraError: it is not; the error names the package that needs another version.
    """
    installed = installed_version(package)
    if installed is not None and _takes(specifier, installed):
        return
    raise MissingExtraError(
        f"{needing} needs {package}{specifier}, but "
        f"{f'{installed} is' if installed else 'it is not'} installed"
        + (
            _other_side(package, specifier, installed)
            or f"\nhint: pip install '{package}{specifier}'"
        )
    )


def _other_side(package: str, specifier: str, installed: str | None) -> str:
    """Return which package needs the version that is installed; empty if none does."""
    for other in EXTRAS.values():
        for _, name, wanted in _contested(other.package):
            # `other` accepts the installed version and `needing` does not, so the two conflict.
            if name == package and installed is not None and _takes(wanted, installed):
                theirs = f"{other.package} {installed_version(other.package)}"
                return (
                    f", which {theirs} needs ({package}{wanted})\n"
                    "hint: install the two in separate Python environments"
                )
    return ""


def _contested(package: str) -> Iterator[tuple[str, str, str]]:
    """Yield the contested packages that an installed package requires, directly or indirectly.

    Yields the requiring package, the contested package, and the versions that it may have.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    seen, found = {(package, "")}, [(package, "")]  # a package, and one of its extras or ""
    for by, extra in found:
        try:
            needed = requires(by) or []
        except PackageNotFoundError:  # not installed: the import of the package will say so
            continue
        for one in map(Requirement, needed):
            if one.marker is not None and not one.marker.evaluate({"extra": extra}):
                continue
            name = canonicalize_name(one.name)
            if name in _CONTESTED:
                yield by, name, str(one.specifier)
                continue
            new = {(name, of) for of in ("", *one.extras)} - seen
            seen |= new
            found += sorted(new)


def wrong_versions() -> Iterator[str]:
    """Yield an error for each installed package in a version that an extra of abut excludes.

    Packages that are not installed are not mentioned, because their extra may not be wanted.
    """
    from packaging.requirements import Requirement

    try:
        needed = [Requirement(text) for text in requires("abut") or []]
    except PackageNotFoundError:  # abut runs from a checkout
        return
    of_extras = {extra.package for extra in EXTRAS.values()}  # `require_extra` checks these
    for one in needed:
        extra, installed = _extra_of(str(one.marker)), installed_version(one.name)
        if not extra or extra == "dev" or installed is None or one.name in of_extras:
            continue
        if not _takes(str(one.specifier), installed):
            holders = ", ".join(_holders(one.name))
            hint = f"pip install 'abut[{extra}]'"
            if holders:
                hint = f"{holders}: install the two in separate Python environments"
            yield (
                f"abut[{extra}] needs {one.name}{one.specifier}, but {installed} is installed\n"
                f"hint: {hint}"
            )


def _extra_of(marker: str) -> str:
    found = re.search(r"extra == ['\"]([\w-]+)", marker)
    return found[1] if found else ""


def _holders(package: str) -> Iterator[str]:
    """Yield the requirements of installed packages that keep a package from being upgraded."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    for distribution in distributions():
        for one in map(Requirement, distribution.requires or []):
            bounds = {specifier.operator for specifier in one.specifier}
            is_bound = bool(bounds & {"<", "<=", "==", "~="}) and one.marker is None
            if is_bound and canonicalize_name(one.name) == package:
                yield f"{distribution.name} needs {package}{one.specifier}"


def installed_version(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _takes(specifier: str, installed: str) -> bool:
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(specifier).contains(installed, prereleases=True)
