"""The pytest plugin: costs nothing until it is used, and never skips in silence."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.checkout import DEMO_ASSETS, EXAMPLES, ROOT
from tests.kit.forks import python

EXAMPLE = EXAMPLES / "certify_tokenizer.py"

TESTS = """\
import pytest

def test_tokens(abut_tokenizer):
    assert abut_tokenizer.token_to_id("<|im_end|>") is not None

@pytest.mark.abut_tokenizer("one.json", "two.json")
def test_marked(abut_tokenizer):
    assert abut_tokenizer.token_to_id("<|im_end|>") is not None
"""


def run(
    folder: Path, *arguments: str | Path, plugin: bool = True, fresh: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run pytest with this plugin and no other one; `fresh`: by an interpreter that starts anew."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    words = ["-m", "pytest", *(["-p", "_abut_pytest"] if plugin else [])]
    words += ["-p", "no:cacheprovider", *map(str, arguments)]
    return subprocess.run(
        [sys.executable, *words] if fresh else python(*words),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def passed(done: subprocess.CompletedProcess[str]) -> set[str]:
    assert done.returncode == 0, done.stdout + done.stderr
    return {line.split("::")[1].split()[0] for line in done.stdout.splitlines() if "PASSED" in line}


@pytest.fixture
def tests(tmp_path: Path) -> Path:
    """A folder with two tests and three tokenizers."""
    (tmp_path / "test_mine.py").write_text(TESTS)
    for name in ("one", "two", "three"):
        shutil.copy(DEMO_ASSETS / "tokenizer.json", tmp_path / f"{name}.json")
    return tmp_path


def test_a_run_that_does_not_use_it_imports_nothing_for_it(tmp_path: Path) -> None:
    names = {"abut", "hypothesis", "numpy", "transformers", "tokenizers"}
    path = tmp_path / "test_nothing.py"
    path.write_text(f"import sys\ndef test(): assert not {names!r} & {{*sys.modules}}\n")
    assert run(tmp_path, path, fresh=True).returncode == 0
    # The check can fail.
    path.write_text(f"import sys, abut\ndef test(): assert not {names!r} & {{*sys.modules}}\n")
    assert run(tmp_path, path, fresh=True).returncode == 1


def test_a_test_runs_once_for_each_tokenizer(tests: Path) -> None:
    options = ["--abut-tokenizer=two.json", "--abut-tokenizer=three.json", "--strict-markers"]
    assert passed(run(tests, "-v", *options)) == {
        "test_tokens[two.json]",
        "test_tokens[three.json]",
        "test_marked[one.json]",
        "test_marked[two.json]",
    }


def test_the_ini_file_names_tokenizers_that_the_option_does_not(tests: Path) -> None:
    (tests / "pytest.ini").write_text("[pytest]\nabut_tokenizer = one.json two.json\n")
    of_both = {"test_tokens[one.json]", "test_tokens[two.json]"}
    assert passed(run(tests, "-v", "-k", "tokens")) == of_both
    option = "--abut-tokenizer=three.json"
    assert passed(run(tests, "-v", "-k", "tokens", option)) == {"test_tokens[three.json]"}


def test_a_path_in_the_ini_file_begins_at_its_folder(tests: Path) -> None:
    (tests / "pytest.ini").write_text("[pytest]\nabut_tokenizer = one.json\n")
    (tests / "below").mkdir()
    (tests / "below" / "test_mine.py").write_text(TESTS)
    found = passed(run(tests / "below", "-v", "-k", "tokens", "test_mine.py"))
    assert found == {"test_tokens[one.json]"}


def test_a_tokenizer_that_cannot_be_loaded_is_an_error_of_a_few_lines(tests: Path) -> None:
    (tests / "broken.json").write_text("{}")
    for source, says in [
        ("./nope", "'./nope' is neither a folder that exists nor the name of a model"),
        ("broken.json", "broken.json: not a tokenizer.json: missing field `model`"),
    ]:
        done = run(tests, "-k", "test_tokens", f"--abut-tokenizer={source}")
        assert done.returncode == 1
        assert f"\nabut_tokenizer={source}: {says}" in done.stdout
        assert len(done.stdout.splitlines()) < 23  # with two of a transformers without torch


def test_a_failing_example_does_not_print_the_whole_tokenizer(example: Path) -> None:
    (example / "test_fails.py").write_text(
        "from hypothesis import given, strategies as st\n"
        "@given(data=st.data())\n"
        "def test_it(abut_tokenizer, abut_hf_tokenizer, data):\n"
        "    assert data.draw(st.just(1)) == 2\n"
    )
    done = run(example, "test_fails.py", f"--abut-tokenizer={DEMO_ASSETS}")
    assert done.returncode == 1
    assert "AddedToken(" not in done.stdout
    assert f"of {str(DEMO_ASSETS)!r}>" in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 300


def test_a_test_without_a_tokenizer_is_an_error_and_no_skip(tests: Path) -> None:
    done = run(tests, "-k", "test_tokens")
    assert done.returncode == 1
    assert (
        "no tokenizer is named for the fixtures of abut\n"
        "hint: pass --abut-tokenizer MODEL, set abut_tokenizer in the ini file, or mark the test "
        "with @pytest.mark.abut_tokenizer(MODEL)"
    ) in done.stdout
    assert "1 error" in done.stdout


def test_without_the_plugin_there_is_no_such_fixture(tests: Path) -> None:
    assert "fixture 'abut_tokenizer' not found" in run(tests, "-k", "tokens", plugin=False).stdout


@pytest.fixture
def example(tmp_path: Path) -> Path:
    shutil.copy(EXAMPLE, tmp_path)
    return tmp_path


def test_the_example_certifies_a_tokenizer(example: Path) -> None:
    done = run(example, EXAMPLE.name, f"--abut-tokenizer={DEMO_ASSETS}")
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_the_example_finds_a_tokenizer_that_is_not_exact(example: Path) -> None:
    (example / "conftest.py").write_text(
        "import pytest\n"
        "from tests.kit.data.tokenizers_made import Broken\n"
        "@pytest.fixture(scope='session')\n"
        "def abut_hf_tokenizer(abut_hf_tokenizer):\n"
        "    spoil = lambda text, ids: ids[:-1]\n"
        "    return Broken(abut_hf_tokenizer, spoil)\n"
    )
    options = ["-o", f"pythonpath={ROOT}", f"--abut-tokenizer={DEMO_ASSETS}"]
    done = run(example, EXAMPLE.name, "-k", "texts", *options)
    assert done.returncode == 1
    assert "1 failed" in done.stdout
    assert "] token 0 differs" in done.stdout
