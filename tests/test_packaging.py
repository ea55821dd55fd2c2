"""The published files: the wheel works in an empty environment, and the sdist is complete.

The wheel is installed without an index, and only NumPy is there: any other requirement would fail,
and the base install must not have one.
"""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import textwrap
import tomllib
import venv
import zipfile
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import abut
from abut.demo.model import ASSETS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[1]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
OPTIONAL = ("torch", "transformers", "trl", "tokenizers", "tqdm", "websockets", "hypothesis")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
TEXT = "<|im_start|>user\nIs <|im_end|> text? Ja, wörtlich: 你好 🙂<|im_end|>\n"

# Run in the empty environment.
PROBE = f"""
import importlib.util, json, sys
import abut
from abut.demo.model import ASSETS
print(json.dumps({{
    "inside": abut.__file__.startswith(sys.prefix),
    "version": abut.__version__,
    "importable": [name for name in {OPTIONAL!r} if importlib.util.find_spec(name)],
    "ids": abut.Tokenizer.from_file(ASSETS / "tokenizer.json").encode({TEXT!r}).tolist(),
}}))
"""


def run(*command: str | Path, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Without what the running environment adds to paths, and with its maturin for pip."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PIP_"))}
    environment["CARGO_TARGET_DIR"] = str(TARGET)
    environment["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), environment["PATH"]])
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True
    )
    if check:
        assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done


def the_only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def scheme(environment: Path) -> dict[str, str]:
    base = {"base": str(environment), "platbase": str(environment)}
    return sysconfig.get_paths("venv", vars=base)


def install(wheel: Path, environment: Path, *, extra: str = "") -> Path:
    """Make an environment of the wheel and what is declared for it; returns its Python.

    That is the running NumPy, and what is installed here of an extra and of what that requires.
    """
    venv.create(environment, with_pip=False, symlinks=os.name != "nt")
    site = Path(scheme(environment)["purelib"])
    for name in {"numpy", *(required(EXTRAS[extra]) if extra else ())}:
        found = distribution(name)
        for part in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (site / part).exists():  # several share a namespace
                (site / part).symlink_to(Path(str(found.locate_file(part))).resolve())
    python = Path(scheme(environment)["scripts"]) / Path(sys.executable).name
    # Without an index: pip fails if the wheel requires more than that.
    pip = (sys.executable, "-m", "pip", "--isolated", "--python", python)
    what = f"{wheel}[{extra}]" if extra else wheel
    run(*pip, "install", "--quiet", "--no-index", what, cwd=environment)
    return python


def required(requirements: list[str], *, extras: frozenset[str] = frozenset()) -> set[str]:
    """The names of what these requirements need, and of all that those need."""
    found: set[str] = set()
    for requirement in map(Requirement, requirements):
        of_extra = [{"extra": extra} for extra in extras or {""}]
        if requirement.marker and not any(map(requirement.marker.evaluate, of_extra)):
            continue
        if requirement.name == "abut":
            found |= required([r for extra in requirement.extras for r in EXTRAS[extra]])
        elif requirement.name not in found:
            found.add(requirement.name)
            more = distribution(requirement.name).requires or []
            found |= required(more, extras=frozenset(requirement.extras))
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "maturin", "build", "--release", "--locked", "--out", out, cwd=ROOT)
    return the_only(out, "*.whl")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "maturin", "sdist", "--out", out, cwd=ROOT)
    return the_only(out, "*.tar.gz")


@pytest.fixture(scope="module")
def empty_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, tmp_path_factory.mktemp("environment"))


def probe(python: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(run(python, "-I", "-c", PROBE, cwd=python.parent).stdout)
    return found


def what_works_here() -> dict[str, object]:
    tokenizer = abut.Tokenizer.from_file(ASSETS / "tokenizer.json")
    return {
        "inside": True,
        "version": abut.__version__,
        "importable": [],
        "ids": tokenizer.encode(TEXT).tolist(),
    }


def test_the_wheel_works_with_numpy_alone(empty_python: Path) -> None:
    assert probe(empty_python) == what_works_here()


def test_the_sdist_holds_all_that_the_wheel_was_built_from(
    wheel: Path, sdist: Path, tmp_path: Path
) -> None:
    """Only `make release-check` builds a wheel from the sdist, because that takes minutes."""
    dep_info = the_only(TARGET / "release", "*abut_native.d").read_text().partition(": ")[2]
    sources = {Path(file.replace("\\ ", " ")) for file in re.split(r"(?<!\\)\s+", dep_info.strip())}
    assert ROOT / "rust/core/src/encode/fast/probe.txt" in sources  # not only Rust
    others = ("pyproject.toml", "Cargo.lock", PROJECT["readme"], *PROJECT["license-files"])
    sources |= {ROOT / name for name in others}
    with zipfile.ZipFile(wheel) as built:
        packaged = {ROOT / "python" / name for name in built.namelist()}
        sources |= {
            file for file in packaged if file.is_file() and not file.match("*/_native.*.so")
        }
    with tarfile.open(sdist) as archive:
        # Python before 3.11.4 has no filters, and warns of none.
        filters = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(tmp_path, **filters)
    unpacked = the_only(tmp_path, "*")

    def missing() -> list[Path]:
        return [
            source
            for source in sorted(sources)
            if not (file := unpacked / source.relative_to(ROOT)).is_file()
            or file.read_bytes() != source.read_bytes()
        ]

    assert not missing()
    (host,) = re.findall("^host: (.+)$", run("rustc", "-vV", cwd=ROOT).stdout, re.MULTILINE)
    resolve = ("--locked", "--offline", "--format-version=1", "--filter-platform", host)
    run("cargo", "metadata", *resolve, cwd=unpacked)
    # The check can fail.
    (unpacked / "Cargo.lock").write_text("")
    assert missing() == [ROOT / "Cargo.lock"]


def test_a_wheel_that_requires_more_than_numpy_would_not_install(
    wheel: Path, tmp_path: Path
) -> None:
    greedy = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(greedy, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("/METADATA"):
                content = content.replace(b"Requires-Dist: numpy", b"Requires-Dist: torch", 1)
            new.writestr(name, content)
    with pytest.raises(AssertionError, match="No matching distribution found for torch"):
        install(greedy, tmp_path / "environment")


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            "from abut.trl import make_rollout_func; make_rollout_func(abut.Env)",
            "abut.trl needs TRL: pip install 'abut[trl]'",
        ),
        (
            "from abut.gateway import Gateway; Gateway().start()",
            "the gateway needs aiohttp: pip install 'abut[gateway]'",
        ),
        (
            "from abut.agents import ClaudeCode; ClaudeCode('Repair it.', len)",
            "abut.agents.ClaudeCode needs Claude Code: pip install 'abut[claude-code]', or "
            "program='/path/to/it'",
        ),
        (
            "from abut.agents import Codex; Codex('Repair it.', len)",
            "abut.agents.Codex needs Codex: pip install 'abut[codex]', or program='/path/to/it'",
        ),
        (
            "from abut.ray import RayPool; from abut.envs.built_in import EchoEnv; "
            "RayPool(EchoEnv, size=1)",
            "abut.ray needs Ray: pip install 'abut[ray]'",
        ),
        (
            "import abut.strategies",
            "abut.strategies needs Hypothesis: pip install 'abut[testing]'",
        ),
        (
            "import abut.samplers.transformers",
            "abut.samplers.transformers needs transformers and torch: pip install 'abut[trl]'",
        ),
        (
            "from abut.nemo_gym import NemoGym; NemoGym('http://127.0.0.1:9')",
            "abut.nemo_gym needs PyYAML: pip install 'abut[nemo_gym]'",
        ),
        (
            "abut.Tokenizer.from_pretrained('gpt2')",
            "loading a tokenizer by name or folder needs transformers: pip install 'abut[hf]'",
        ),
    ],
)
def test_an_extra_that_is_missing_is_named(
    empty_python: Path, statement: str, message: str
) -> None:
    done = run(
        empty_python, "-I", "-c", f"import abut; {statement}", cwd=empty_python.parent, check=False
    )
    assert done.returncode == 1
    assert f"abut.errors.MissingExtraError: {message}\n" in done.stderr


USES = {
    "eval_protocol": """
        import abut.eval_protocol
        from eval_protocol.models import EvaluationRow, Message
        from eval_protocol.pytest import evaluation_test

        @evaluation_test(input_messages=[[[Message(role="user", content="hi")]]])
        def test_it(row: EvaluationRow) -> EvaluationRow:
            return row

        assert abut.eval_protocol.eval_test(test_it).dataset()["prompt"][0] == "hi"
    """,
    "verifiers": """
        import sys, types
        from importlib.machinery import ModuleSpec
        import verifiers.v1 as vf
        from abut.verifiers import verifiers_env

        class One(vf.Taskset[vf.Task, vf.TasksetConfig]):
            def load(self):
                return [vf.Task(vf.TaskData(prompt="hi"))]

        module = sys.modules["one_taskset"] = types.ModuleType("one_taskset")
        module.__spec__, module.__all__, module.One = ModuleSpec("one_taskset", None), ["One"], One
        assert verifiers_env("one_taskset").dataset()["prompt"][0] == "hi"
    """,
    "inspect_ai": """
        from abut.inspect_ai import inspect_task
        from inspect_ai import Task
        from inspect_ai.dataset import Sample

        task = inspect_task(Task(dataset=[Sample(input="hi")]), log_dir=None)
        assert task.dataset()["prompt"][0] == "hi"
    """,
    "mcp": """
        import sys

        import abut
        from abut.errors import EnvError

        command = [sys.executable, "-c", "raise SystemExit('says nothing')"]
        env = abut.tool_env(mcp={"silent": {"command": command}}, reward=len)
        try:
            env.tools
        except EnvError as error:
            assert "says nothing" in str(error)
        else:
            raise AssertionError
    """,
    "claude-code": """
        from abut.agents import ClaudeCode
        from abut.gateway import Gateway

        ClaudeCode("Repair it.", lambda result: 1.0)
        Gateway()
    """,
    "codex": """
        from abut.agents import Codex
        from abut.gateway import Gateway

        Codex("Repair it.", lambda result: 1.0)
        Gateway()
    """,
    "gateway": """
        from abut.gateway import Gateway
        gateway = Gateway()
        gateway.start()
        assert gateway.base_url.endswith("/v1")
        gateway.stop()
    """,
    "harbor": """
        from pathlib import Path
        from abut.harbor import harbor_tasks

        for path, text in {
            "task.toml": "",
            "instruction.md": "Write it.",
            "environment/Dockerfile": "FROM debian:12-slim",
            "tests/test.sh": "echo 1 > /logs/verifier/reward.txt",
        }.items():
            Path("task", path).parent.mkdir(parents=True, exist_ok=True)
            Path("task", path).write_text(text)
        assert harbor_tasks("task").dataset()["prompt"][0] == "Write it."
    """,
    "nemo_gym": """
        import abut
        from abut.cli.__main__ import main
        from abut.gateway import Gateway
        from abut.nemo_gym import NemoGym

        NemoGym("http://127.0.0.1:9")
        gateway = Gateway()
        gateway.start()
        gateway.stop()
        assert main(["doctor", "--nemo-gym", "http://127.0.0.1:9"]) == 1
    """,
    "hf": """
        import abut
        from abut.cli.__main__ import main
        from abut.demo.model import ASSETS

        def look(where: str) -> str:
            "Look.\\n\\nArgs:\\n    where: there"
            return where

        abut.tool_env([look], reward=len)
        assert main(["check", str(ASSETS)]) == 0
    """,
    "trl": """
        from abut.cli.__main__ import main
        assert main(["demo", "--steps", "1"]) == 0
    """,
    "vllm": """
        import asyncio
        import abut
        from abut.samplers.vllm import VLLMServerSampler

        async def enter():
            async with VLLMServerSampler("http://127.0.0.1:9", give_up_s=0.1):
                pass

        try:
            asyncio.run(enter())
        except abut.SamplerError as error:
            assert "127.0.0.1:9" in str(error), error
        else:
            raise AssertionError
    """,
    "images": """
        import numpy as np
        from abut import Image
        pixels = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
        image = Image.of(pixels)
        assert Image(image.data) is image
        assert (image.pixels == pixels).all()
    """,
    "openenv": """
        import asyncio
        import abut
        from abut.envs.task import RolloutTask
        from abut.openenv import OpenEnv

        env = OpenEnv("http://127.0.0.1:9", connect_timeout_s=0.1)
        try:
            asyncio.run(env.lend(RolloutTask(0, "r0", env, [], "seed", 0)))
        except abut.errors.EnvError as error:
            assert "127.0.0.1:9" in str(error), error
        else:
            raise AssertionError
    """,
    "parquet": """
        import abut
        from abut.rollout.rollout import Rollout
        recorder = abut.records.ParquetRecorder("rollouts")
        recorder.write(Rollout("r0", 0))
        recorder.flush()
        (record,) = abut.records.read_records("rollouts")
        assert record["rollout_id"] == "r0"
    """,
    "ray": """
        import abut
        from abut.ray import RayPool

        try:
            RayPool(EchoEnv, size=1, address="127.0.0.1:9")
        except abut.errors.EnvError as error:
            assert "127.0.0.1:9" in str(error), error
        else:
            raise AssertionError
    """,
    "fast": """
        from abut.concurrency.loop import new_loop
        loop = new_loop()
        loop.close()
        assert type(loop).__module__.startswith("uvloop")
    """,
    "testing": """
        import abut
        from abut.demo.model import ASSETS
        from abut.strategies import texts
        from abut.testing import assert_additive
        from hypothesis import given

        tokenizer = abut.Tokenizer.from_file(ASSETS / "tokenizer.json")
        given(texts(tokenizer))(lambda text: assert_additive(tokenizer, text, "<|im_end|>"))()
    """,
}


ALONE = {
    "claude-code": ("claude_agent_sdk", "test-agents-coding"),
    "codex": ("codex_cli_bin", "test-agents-coding"),
    "eval_protocol": ("eval_protocol", "test-eval-protocol"),
    "harbor": ("harbor", "test-harbor"),
    "inspect_ai": ("inspect_ai", "test-inspect"),
    "mcp": ("mcp", "test-mcp"),
    "ray": ("ray", "test-ray"),
    "verifiers": ("verifiers", "test-verifiers"),
}
"""The module that an extra brings, and the target that makes an environment with it."""


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param(extra, marks=[pytest.mark.agents] * (extra in ("claude-code", "codex")))
        for extra in sorted(USES)
    ],
)
def test_an_extra_alone_brings_all_that_it_needs(wheel: Path, tmp_path: Path, extra: str) -> None:
    if extra in ALONE and find_spec(ALONE[extra][0]) is None:
        target = f"make {ALONE[extra][1]}"
        pytest.skip(f"its packages are in an environment of their own: {target}")
    python = install(wheel, tmp_path / "environment", extra=extra)
    run(python, "-I", "-c", textwrap.dedent(USES[extra]), cwd=tmp_path)


def test_each_extra_for_users_is_tried_alone() -> None:
    assert set(USES) == set(EXTRAS) - {"dev"}


def test_the_command_runs_and_names_what_the_demo_needs(empty_python: Path) -> None:
    command = empty_python.with_name("abut").with_suffix(empty_python.suffix)
    folder = empty_python.parent
    assert run(command, "--version", cwd=folder).stdout == f"abut {abut.__version__}\n"
    done = run(command, "check", ASSETS / "tokenizer.json", cwd=folder, check=False)
    assert done.returncode == 1
    assert "\nresult: NOT JUDGED\n  the tokenizer can be used" in done.stdout
    done = run(command, "demo", cwd=folder, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("abut demo")
    assert "pip install 'abut[trl]'" in done.stderr


def test_the_wheel_serves_every_python_from_3_11(wheel: Path) -> None:
    assert wheel.name.startswith(f"abut-{abut.__version__}-cp311-abi3-")


def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel: Path) -> None:
    """`benchmarks` and `tests/reference` are in the repository, but not in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        entry_points = archive.read(f"abut-{abut.__version__}.dist-info/entry_points.txt").decode()
        licences = {
            name: archive.read(f"abut-{abut.__version__}.dist-info/licenses/{name}")
            for name in PROJECT["license-files"]
        }
    package = ROOT / "python" / "abut"
    ours = {
        f"abut/{file.relative_to(package).as_posix()}"
        for file in package.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and not file.match("_native.*.so")
    }
    built = {name for name in names if name.startswith("abut/_native.") and name[-3:] != "pyi"}
    assert len(built) == 1
    plugin = {"_abut_pytest.py"}
    assert not {name for name in names if "bench" in name or "reference" in name}
    assert {name for name in names if ".dist-info/" not in name} == ours | built | plugin
    assert "[pytest11]\nabut=_abut_pytest\n" in entry_points
    assert {"abut/py.typed", "abut/_native.pyi", "abut/demo/assets/tokenizer.json"} <= ours
    assert licences == {name: (ROOT / name).read_bytes() for name in licences}
    assert b"Apache License" in licences["LICENSE"]


def test_the_licences_of_what_is_linked_are_up_to_date() -> None:
    """CI looks with the Rust that builds wheels and with all crates (make audit-rust)."""
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))
    version = cargo["workspace"]["metadata"]["release-rust"]
    if f"rustc {version} " not in run("rustc", "--version", cwd=ROOT).stdout:
        pytest.skip(f"the texts of its standard library come with Rust {version}")
    if run("cargo", "fetch", "--locked", "--offline", cwd=ROOT, check=False).returncode:
        pytest.skip("the crates of other platforms are not here: cargo fetch")
    script = ROOT / "scripts" / "release" / "third_party_licenses.py"
    run(sys.executable, script, "--check", cwd=ROOT)


def test_the_licences_are_those_of_each_part() -> None:
    page = (ROOT / "THIRD-PARTY-LICENSES").read_text(encoding="utf-8")
    named = set(re.findall(r"^(\S+ \S+): ", page, re.MULTILINE))
    assert {f"onig_sys {version}" for version in locked("onig_sys")} <= named
    assert {f"tokenizers {version}" for version in locked("tokenizers")} <= named
    assert "(oniguruma/COPYING)" in page
    assert "UNICODE LICENSE V3" in page
    assert not [name for name in named if name.startswith(("abut", "proptest ", "syn "))]


def locked(name: str) -> list[str]:
    """The versions of a crate in Cargo.lock."""
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text(encoding="utf-8"))
    return [package["version"] for package in lock["package"] if package["name"] == name]


def test_the_extras_are_those_of_the_modules(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"abut-{abut.__version__}.dist-info/METADATA").decode()
    lines = metadata.splitlines()
    base = [line for line in lines if line.startswith("Requires-Dist: ") and "extra ==" not in line]
    assert base == [f"Requires-Dist: {requirement}" for requirement in PROJECT["dependencies"]]
    for name, address in PROJECT["urls"].items():
        assert f"Project-URL: {name}, {address}" in lines
    assert set(EXTRAS) == {
        "fast",
        "claude-code",
        "codex",
        "eval_protocol",
        "gateway",
        "harbor",
        "hf",
        "images",
        "inspect_ai",
        "mcp",
        "nemo_gym",
        "trl",
        "vllm",
        "openenv",
        "parquet",
        "ray",
        "testing",
        "verifiers",
        "dev",
    }
