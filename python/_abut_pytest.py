"""The pytest plugin of abut: certify your tokenizer with tests of your own.

    pytest --abut-tokenizer=Qwen/Qwen3-8B --abut-tokenizer=path/to/tokenizer.json

Every test that takes the fixture `abut_tokenizer` or `abut_hf_tokenizer` runs once for each
tokenizer: those of its marker `abut_tokenizer(...)`, else those of the option, else those of the
ini option `abut_tokenizer`. Without any, such a test is an error, not a silent skip.

It imports abut, Hypothesis and transformers only when a test asks for a tokenizer: every run of
pytest in an environment with abut loads this file.
"""

from pathlib import Path
from typing import Any

import pytest

_MARKER = (
    "abut_tokenizer(*sources): the tokenizers that the fixtures abut_tokenizer and "
    "abut_hf_tokenizer give to this test: names, folders or tokenizer.json files"
)
_FIXTURES = {"abut_tokenizer", "abut_hf_tokenizer"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and its twin for the ini file."""
    parser.getgroup("abut").addoption(
        "--abut-tokenizer",
        action="append",
        metavar="MODEL",
        help="a name, folder or tokenizer.json for tests that take abut_tokenizer; repeatable",
    )
    parser.addini(
        "abut_tokenizer",
        "what --abut-tokenizer names, where it is not given; paths begin at the ini file's folder",
        type="args",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, for --strict-markers."""
    config.addinivalue_line("markers", _MARKER)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test once for each tokenizer that it is meant for."""
    if not _FIXTURES & {*metafunc.fixturenames}:
        return
    marker = metafunc.definition.get_closest_marker("abut_tokenizer")
    sources = (
        (marker and [*marker.args])
        or metafunc.config.getoption("--abut-tokenizer")
        or _of_ini_file(metafunc.config)
    )
    if sources:
        names = [Path(source).name for source in sources]
        ids = names if len({*names}) == len(names) else [str(source) for source in sources]
        metafunc.parametrize("_abut_source", sources, ids=ids, indirect=True, scope="session")


def _of_ini_file(config: pytest.Config) -> list[str]:
    """What the ini file names: a path from its folder where there is one, else a model's name."""
    folder = config.rootpath if config.inipath is None else config.inipath.parent
    return [
        str(folder / source) if (folder / source).exists() else source
        for source in config.getini("abut_tokenizer")
    ]


@pytest.fixture(scope="session")
def _abut_source(request: pytest.FixtureRequest) -> str:
    source = getattr(request, "param", None)
    if source is None:
        pytest.fail(
            "no tokenizer is named for the fixtures of abut\n"
            "hint: pass --abut-tokenizer MODEL, set abut_tokenizer in the ini file, or mark the "
            "test with @pytest.mark.abut_tokenizer(MODEL)",
            pytrace=False,
        )
    return str(source)


@pytest.fixture(scope="session")
def abut_hf_tokenizer(_abut_source: str) -> Any:
    """The transformers tokenizer that is under test."""
    from abut.errors import AbutError
    from abut.pretrained import load_hf_tokenizer
    from abut.testing import native_tokenizer

    try:
        tokenizer = load_hf_tokenizer(_abut_source)
        native_tokenizer(tokenizer)  # loaded here, and not inside the deadline of a first example
    except (AbutError, OSError) as error:
        pytest.fail(f"abut_tokenizer={_abut_source}: {error}", pytrace=False)
    # Its own repr lists every added token, and Hypothesis prints it with each falsifying example.
    kind = type(tokenizer)
    short = f"<{kind.__name__} of {_abut_source!r}>"
    tokenizer.__class__ = type(kind.__name__, (kind,), {"__repr__": lambda self: short})
    return tokenizer


@pytest.fixture(scope="session")
def abut_tokenizer(_abut_source: str, request: pytest.FixtureRequest) -> Any:
    """The `abut.Tokenizer` that is under test. A lone tokenizer.json needs no transformers."""
    if Path(_abut_source).is_file():
        from abut import AbutError, Tokenizer

        try:
            return Tokenizer.from_file(_abut_source)
        except AbutError as error:
            pytest.fail(f"abut_tokenizer={_abut_source}: {error}", pytrace=False)
    from abut.testing import native_tokenizer

    return native_tokenizer(request.getfixturevalue("abut_hf_tokenizer"))
