"""Packages of environments: what is missing or excludes another is named before it is imported."""

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("packaging")

from abut.errors import MissingExtraError
from abut.extras import EXTRAS, check_beside, require_extra, wrong_versions

Install = Callable[..., None]


@pytest.fixture(autouse=True)
def _python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any that all packages take."""
    monkeypatch.setattr(sys, "version_info", (3, 12, 1, "final", 0))


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install packages in a folder that hides all others."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    def install(package: str, version: str, *needs: str) -> None:
        folder = tmp_path / f"{package.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {package}", f"Version: {version}"]
        lines += [f"Requires-Dist: {need}" for need in needs]
        (folder / "METADATA").write_text("\n".join(lines) + "\n")

    return install


def test_what_is_installed_is_taken(install: Install) -> None:
    install("verifiers", "0.4.0", "mcp==2.0.0", "openai<3", "textual", 'openai>=9; extra == "x"')
    install("mcp", "2.0.0")
    install("openai", "2.54.0")
    install("inspect-ai", "0.3.285")
    assert require_extra("verifiers") == "0.4.0"
    assert require_extra("inspect_ai") == "0.3.285"
    check_beside("a provider", "openai", ">=2")


def test_what_is_missing_or_too_old_is_an_error(install: Install) -> None:
    with pytest.raises(MissingExtraError, match=r"^abut.verifiers needs verifiers: pip install 'a"):
        require_extra("verifiers")
    install("inspect-ai", "0.3.250")
    with pytest.raises(MissingExtraError) as raised:
        require_extra("inspect_ai")
    assert str(raised.value) == (
        "abut.inspect_ai needs inspect-ai>=0.3.277, but 0.3.250 is installed\nhint: pip "
        "install 'abut[inspect_ai]'"
    )


def test_a_python_that_a_package_does_not_take_is_named(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 11, 9, "final", 0))
    with pytest.raises(MissingExtraError, match=r"harbor: harbor needs Python 3\.12 or later"):
        require_extra("harbor")


def test_packages_that_exclude_each_other_are_both_named(install: Install) -> None:
    install("verifiers", "0.4.0", "mcp==2.0.0", "openai<3")
    install("harbor", "0.26.0", "mcp>=2.3", "openai>=3")
    install("mcp", "2.3.1")
    install("openai", "3.54.0")
    with pytest.raises(MissingExtraError) as raised:
        require_extra("verifiers")
    assert str(raised.value) == (
        "verifiers 0.4.0 needs mcp==2.0.0, but 2.3.1 is installed, which harbor 0.26.0 needs "
        "(mcp>=2.3)\nhint: install the two in separate Python environments"
    )
    assert require_extra("harbor") == "0.26.0"


def test_a_package_may_need_another_by_a_third(install: Install) -> None:
    """So does harbor, and its packages name one another."""
    install("harbor", "0.26.0", "fastmcp>=4", "litellm")
    install("fastmcp", "4.2.3", "Fastmcp_Slim[client]==4.2.3", "harbor")
    install("fastmcp-slim", "4.2.3", 'mcp>=2.3; extra == "client"', 'openai>=9; extra == "other"')
    install("verifiers", "0.4.0", "mcp==2.0.0")
    install("mcp", "2.0.0")
    with pytest.raises(MissingExtraError) as raised:
        require_extra("harbor")
    assert str(raised.value) == (
        "harbor 0.26.0, by its fastmcp-slim 4.2.3, needs mcp>=2.3, but 2.0.0 is installed, "
        "which verifiers 0.4.0 needs (mcp==2.0.0)\nhint: install the two in separate Python "
        "environments"
    )
    assert require_extra("verifiers") == "0.4.0"


def test_servers_of_tools_want_a_package_that_verifiers_pins(install: Install) -> None:
    with pytest.raises(MissingExtraError, match=r"^tool_env\(mcp=…\) needs mcp: pip install 'abut"):
        require_extra("mcp")
    install("mcp", "2.0.0")
    with pytest.raises(MissingExtraError) as raised:
        require_extra("mcp")
    said = "tool_env(mcp=…) needs mcp>=2.3,<3, but 2.0.0 is installed"
    assert str(raised.value) == f"{said}\nhint: pip install 'abut[mcp]'"
    install("verifiers", "0.4.0", "mcp==2.0.0")
    with pytest.raises(MissingExtraError) as raised:
        require_extra("mcp")
    assert str(raised.value) == (
        f"{said}, which verifiers 0.4.0 needs (mcp==2.0.0)\nhint: install the two in separate "
        "Python environments"
    )


def test_a_grader_s_package_may_be_another_s(install: Install) -> None:
    install("verifiers", "0.4.0", "openai<3")
    install("openai", "2.54.0")
    with pytest.raises(MissingExtraError) as raised:
        check_beside("Inspect's provider openai", "openai", ">=3.4")
    assert str(raised.value) == (
        "Inspect's provider openai needs openai>=3.4, but 2.54.0 is installed, which verifiers "
        "0.4.0 needs (openai<3)\nhint: install the two in separate Python environments"
    )


def test_a_package_that_nothing_else_wants_is_to_be_installed(install: Install) -> None:
    for text in ("none", "2.0.0"):
        with pytest.raises(MissingExtraError) as raised:
            check_beside("harbor 0.26.0", "mcp", ">=2.3")
        found = "it is not" if text == "none" else f"{text} is"
        assert str(raised.value) == (
            f"harbor 0.26.0 needs mcp>=2.3, but {found} installed\nhint: pip install 'mcp>=2.3'"
        )
        if text == "none":
            install("mcp", "2.0.0")


def test_the_page_has_the_versions_that_are_taken() -> None:
    page = Path(__file__).parent.parent / "docs" / "reference" / "environments.md"
    if not page.exists():
        pytest.skip("no checkout")
    rows = [line for line in page.read_text().splitlines() if "| `abut[" in line]
    for name, extra in EXTRAS.items():
        (row,) = [line for line in rows if f"`abut[{name}]`" in line]
        oldest = extra.versions.partition(",")[0]
        assert f"{extra.package}{oldest}" in row
        assert row.endswith(f"| {'.'.join(map(str, extra.python))} |")


def test_the_extras_of_the_wheel_bring_versions_that_are_taken() -> None:
    """Of verifiers abut also takes older ones, which bring old environments."""
    project = Path(__file__).parent.parent / "pyproject.toml"
    if not project.exists():
        pytest.skip("no checkout")
    extras = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    for name in EXTRAS.keys() & extras.keys() - {"verifiers"}:
        said = [one.partition(";")[0] for one in extras[name]]
        assert f"{EXTRAS[name].package}{EXTRAS[name].versions}" in said


def test_a_version_that_another_extra_excludes_is_found_with_what_holds_it(
    install: Install,
) -> None:
    assert [*wrong_versions()] == []  # abut has no metadata here
    install("abut", "0.3.0", "numpy", "websockets>=16.1; extra == 'openenv'", "ray; extra == 'ray'")
    assert [*wrong_versions()] == []
    install("websockets", "15.0.1")
    needs = "abut[openenv] needs websockets>=16.1, but 15.0.1 is installed\nhint: "
    assert [*wrong_versions()] == [f"{needs}pip install 'abut[openenv]'"]
    install("realtime", "2.34.1", "websockets<16,>=11")
    assert [*wrong_versions()] == [
        f"{needs}realtime needs websockets<16,>=11: install the two in separate Python environments"
    ]
