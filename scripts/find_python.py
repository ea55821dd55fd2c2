"""Find a Python version on PATH or in pyenv: `python scripts/find_python.py 3.12`.

Prints the path of the interpreter, or nothing if there is none.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path


def find_python(version: str) -> Path | None:
    """Return an interpreter of a version such as 3.12; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    on_path = shutil.which(f"python{version}")
    places = [
        *([Path(on_path)] if on_path else []),
        *pyenv.glob(f"versions/{version}.*/bin/python"),
    ]
    probe = (
        f"import sys, venv; sys.exit(sys.version_info[:2] != {tuple(map(int, version.split('.')))})"
    )
    for place in places:
        # pyenv has shims on PATH for versions that it cannot run, too.
        if subprocess.run([place, "-c", probe], capture_output=True).returncode == 0:
            return place
    return None


if __name__ == "__main__":
    found = find_python(sys.argv[1])
    if found is not None:
        print(found)
