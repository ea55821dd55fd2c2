"""Create an environment with NeMo Gym for its servers, if a suitable Python is installed.

`python scripts/nemo_gym_env.py 0.4.0 .venv-nemo-gym/0.4.0`. Without a suitable Python the script
prints a message, and with `--required` it also fails.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from find_python import find_python

PYTHONS = {"0.4.0": "3.12", "0.7.0": "3.13"}
"""The Python of each version. 0.7.0 requires 3.13.14, but runs with any 3.13."""
_REQUIREMENTS = """
from importlib.metadata import requires
for requirement in requires("nemo-gym"):
    if "extra ==" not in requirement:
        print(requirement)
"""


def main() -> None:
    """Create the environment, replacing an existing one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", choices=sorted(PYTHONS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--required", action="store_true")
    args = parser.parse_args()
    found = find_python(PYTHONS[args.version])
    if found is None:
        said = f"nemo-gym {args.version} needs Python {PYTHONS[args.version]}; it is not installed"
        sys.exit(said if args.required else print(said))

    def run(*words: str | Path, **options: object) -> str:
        done = subprocess.run([str(w) for w in words], check=True, text=True, **options)
        return done.stdout or ""

    run(found, "-m", "venv", "--clear", args.folder)
    python = args.folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "uv")
    # Install it without its requirements, because pip would refuse 0.7.0 on another patch version.
    alone = ("--no-deps", "--ignore-requires-python")
    run(python, "-m", "pip", "install", "--quiet", *alone, f"nemo-gym=={args.version}")
    needed = run(python, "-c", _REQUIREMENTS, stdout=subprocess.PIPE)
    uv = (python, "-m", "uv", "pip", "install", "--quiet", "--python", python)
    run(*uv, "--requirement", "-", input=needed)


if __name__ == "__main__":
    main()
