"""Install the requirements of this package and of some extras, without the package itself.

`pip install .[trl]` would build the extension each time; this reads pyproject.toml instead.
"""

import argparse
import subprocess
import sys
import tomllib
from pathlib import Path


def requirements(project: dict, extras: list[str]) -> list[str]:
    """Return what the project and its extras need; an extra may name other extras of its own."""
    found = list(project["dependencies"])
    for extra in extras:
        for requirement in project["optional-dependencies"][extra]:
            own = requirement.removeprefix(f"{project['name']}[")
            if own != requirement:
                found += requirements(project, own.rstrip("]").split(","))
            else:
                found.append(requirement)
    return list(dict.fromkeys(found))


def main() -> None:
    """Read the extras from the command line and run pip."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--constraint", required=True, help="a pip constraints file")
    parser.add_argument("extras", nargs="*")
    args = parser.parse_args()
    root = Path(__file__).resolve().parent.parent
    pyproject = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = requirements(pyproject["project"], args.extras)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--constraint", args.constraint]
    sys.exit(subprocess.call([*pip, *wanted]))


if __name__ == "__main__":
    main()
