"""Test the oldest packages that pyproject.toml promises to work.

    python scripts/release/oldest.py light dist/abut-….whl    # all extras but those with torch
    python scripts/release/oldest.py trl dist/abut-….whl      # those with torch
    python scripts/release/oldest.py ray dist/abut-….whl      # Ray

Each package that an extra for users names is installed in the oldest version that it allows; one
that cannot be had so old beside the others fails, since its bound is then not true. What they need
themselves, and what only the tests need, is as new as they take: the oracle of the encoders is
`tokenizers` as it is now.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import environments as envs

# The extras with environments of their own. That of Eval Protocol, which asks for newer packages
# than the others, has the oldest that its extra allows.
ALONE = ("eval_protocol", "harbor", "inspect_ai", "mcp", "verifiers", "ray", "claude-code", "codex")
# What the tests of a kind need besides, and which they are. Light ones are all that need no torch.
NEEDS = {"trl": "tests/trl_matrix/requirements.txt", "ray": "tests/ray/requirements.txt"}
TESTS = {
    "light": ["--ignore=tests/test_packaging.py"],
    # The contract with a version of TRL, on one rank and on two.
    "trl": ["tests/trl_matrix", "tests/trl/test_ranks.py"],
    "ray": ["tests/ray"],
}
PYTHON = "3.11"
TOOLS = "dev"  # the extra for contributors
# They only check the source, or are there for Eval Protocol's helper.
LEFT_OUT = {"codespell", "maturin", "mypy", "ruff", "eval-protocol", "openenv"}


def bound(requirement: str) -> str | None:
    """The oldest version that a requirement allows."""
    found = re.search(r">=\s*([\w.]+)", requirement)
    return found[1] if found else None


def is_version(found: str, wanted: str) -> bool:
    """Whether two versions are the same but for zeros at the end and what is behind a plus."""

    def parts(version: str) -> list[str]:
        return re.sub(r"(\.0)*$", "", version.partition("+")[0]).split(".")

    return parts(found) == parts(wanted)


def installed(python: Path) -> dict[str, str]:
    """The versions there, by name."""
    code = "import importlib.metadata as m; [print(d.name, d.version) for d in m.distributions()]"
    done = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    pairs = (line.split() for line in done.stdout.splitlines())
    return {envs.name_of(name): version for name, version in pairs}


def extras_own(extra: str) -> list[str]:
    """What an extra needs beside the base install."""
    return envs.requirements([extra])[len(envs.requirements([])) :]


def wants(kind: str) -> tuple[list[str], list[str]]:
    """What users may have so old, and what else the tests need."""
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
    """Make the environment; returns its Python."""
    python = envs.make(folder / "environment", PYTHON)
    wanted, tools = wants(kind)
    pip = ["pip", "install", "--quiet", "--python", python]
    torch = [r for r in (*wanted, *tools) if envs.name_of(r) == "torch"]
    if torch and "CPU_TORCH" in os.environ:
        # From that index torch alone, and nothing that it needs: no other name can come from there.
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
            faults.append(f"{requirement}: the oldest that goes with the others is {have[name]}")
    if faults:
        sys.exit("\n".join([*faults, "hint: raise these bounds in pyproject.toml"]))
    return python


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kind", choices=[*TESTS])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--pytest", action="append", default=[], help="an argument for pytest")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        python = install(options.kind, options.wheel, Path(folder))
        envs.check_installed(python)
        # Tokenizers that lie beside the checkout are in the format of today's transformers.
        os.environ.pop("ABUT_TOKENIZERS", None)
        if options.kind == "trl":
            os.environ["ABUT_TRL_VERSION"] = installed(python)["trl"]
        sys.exit(envs.pytest(python, *TESTS[options.kind], *options.pytest))


if __name__ == "__main__":
    main()
