"""Test abut with the oldest packages that pyproject.toml allows.

    python scripts/release/oldest.py light dist/abut-….whl    # extras without torch
    python scripts/release/oldest.py trl dist/abut-….whl      # extras with torch
    python scripts/release/oldest.py ray dist/abut-….whl      # Ray

Each package of an extra for users is installed in the oldest version that the extra allows. If
other packages require a newer version, the check fails, because the bound is wrong. Their
dependencies, and packages that only the tests need, are as new as possible, because the encoders
are compared with the current `tokenizers`.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import environments as envs

# The extras with separate environments. Eval Protocol requires newer packages than the others; its
# environment has the oldest versions that its extra allows.
ALONE = ("eval_protocol", "harbor", "inspect_ai", "mcp", "verifiers", "ray", "claude-code", "codex")
# Additional packages of each kind, and its tests. The kind `light` runs all tests without torch.
NEEDS = {"trl": "tests/trl_matrix/requirements.txt", "ray": "tests/ray/requirements.txt"}
TESTS = {
    "light": ["--ignore=tests/test_packaging.py"],
    # The tests of the interface to a version of TRL, on one rank and on two.
    "trl": ["tests/trl_matrix", "tests/trl/test_ranks.py"],
    "ray": ["tests/ray"],
}
PYTHON = "3.11"
TOOLS = "dev"  # the extra for contributors
# They only check the source, or belong to Eval Protocol's helper.
LEFT_OUT = {"codespell", "maturin", "mypy", "ruff", "eval-protocol", "openenv"}


def bound(requirement: str) -> str | None:
    """Return the oldest version that a requirement allows."""
    found = re.search(r">=\s*([\w.]+)", requirement)
    return found[1] if found else None


def is_version(found: str, wanted: str) -> bool:
    """Return whether two versions are equal, ignoring trailing zeros and local parts (`+cpu`)."""

    def parts(version: str) -> list[str]:
        return re.sub(r"(\.0)*$", "", version.partition("+")[0]).split(".")

    return parts(found) == parts(wanted)


def installed(python: Path) -> dict[str, str]:
    """Return the versions of the installed packages by name."""
    code = "import importlib.metadata as m; [print(d.name, d.version) for d in m.distributions()]"
    done = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    pairs = (line.split() for line in done.stdout.splitlines())
    return {envs.name_of(name): version for name, version in pairs}


def extras_own(extra: str) -> list[str]:
    """Return the requirements of an extra in addition to the base install."""
    return envs.requirements([extra])[len(envs.requirements([])) :]


def wants(kind: str) -> tuple[list[str], list[str]]:
    """Return the requirements to install in their oldest versions, and those of the tests."""
    tools: list[str] = []
    if kind in ALONE:
        wanted = extras_own(kind)
    else:
        extras = [extra for extra in envs.light_extras() if extra != TOOLS]
        if kind == "trl":
            extras += [extra for extra in envs.extras_here() if envs.needs_torch(extra)]
        wanted = envs.requirements(extras)
        tools += envs.requirements([TOOLS])
    if kind in NEEDS:
        lines = (envs.ROOT / NEEDS[kind]).read_text(encoding="utf-8").splitlines()
        tools += [line for line in lines if line and line[0] != "#"]
    used = {envs.name_of(requirement) for requirement in wanted} | LEFT_OUT
    return wanted, [requirement for requirement in tools if envs.name_of(requirement) not in used]


def install(kind: str, wheel: Path, folder: Path) -> Path:
    """Create the environment, and return its Python."""
    python = envs.make(folder / "environment", PYTHON)
    wanted, tools = wants(kind)
    pip = ["pip", "install", "--quiet", "--python", python]
    torch = [r for r in (*wanted, *tools) if envs.name_of(r) == "torch"]
    if torch and "CPU_TORCH" in os.environ:
        # Only torch itself comes from that index, so that other packages there cannot be installed.
        exact = torch[0] if "==" in torch[0] else f"torch=={bound(torch[0])}.0"
        envs.uv(*pip, "--no-deps", "--default-index", os.environ["CPU_TORCH"], exact)
    listed = folder / "oldest.txt"
    listed.write_text("\n".join(wanted) + "\n", encoding="utf-8")
    envs.uv(*pip, "--resolution", "lowest-direct", "--requirement", listed)
    envs.uv(*pip, *tools)
    envs.uv(*pip, "--no-deps", wheel.resolve())
    have = installed(python)
    faults = []
    for requirement in wanted:
        name, oldest = envs.name_of(requirement), bound(requirement)
        if name in have and oldest is not None and not is_version(have[name], oldest):
            faults.append(
                f"{requirement}: the oldest version that works with the others is {have[name]}"
            )
    if faults:
        sys.exit("\n".join([*faults, "hint: raise these bounds in pyproject.toml"]))
    return python


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kind", choices=[*TESTS])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--pytest", action="append", default=[], help="an argument for pytest")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        python = install(options.kind, options.wheel, Path(folder))
        envs.check_installed(python)
        # The tokenizers of the test data have the format of the current transformers.
        os.environ.pop("ABUT_TOKENIZERS", None)
        if options.kind == "trl":
            os.environ["ABUT_TRL_VERSION"] = installed(python)["trl"]
        sys.exit(envs.pytest(python, *TESTS[options.kind], *options.pytest))


if __name__ == "__main__":
    main()
