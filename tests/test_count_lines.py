"""`scripts/count_lines.py` counts code, and neither blank lines nor comments nor docstrings."""

import subprocess
import sys
from pathlib import Path

from scripts.count_lines import lines_of_code
from tests.kit.checkout import ROOT

MODULE = '''"""A module.

Its docstring has two paragraphs.
"""

import os  # 1

# A comment.
LIMIT = 3  # 2
"""The docstring of an attribute."""


class Room:  # 3
    """A docstring."""

    name: str  # 4
    """An attribute's,
    in two lines."""

    def text(self) -> str:  # 5
        """A docstring."""
        if os.name:  # 6
            """A string that is a statement, and does nothing."""
            return """one  # 7
            two  # 8
            """  # 9
        return (  # 10

            self.name  # 11
        )  # 12
'''


def test_only_code_is_counted() -> None:
    assert lines_of_code(MODULE) == 12
    assert lines_of_code('"""A docstring alone."""\n# and a comment\n') == 0


def test_the_sum_is_that_of_the_rooms(tmp_path: Path) -> None:
    package = tmp_path / "python" / "abut"
    (package / "floor").mkdir(parents=True)
    (package / "floor" / "board.py").write_text(MODULE)
    (package / "ground.py").write_text("x = 1\n")
    command = [sys.executable, str(ROOT / "scripts" / "count_lines.py"), str(tmp_path)]
    out = subprocess.check_output(command, text=True).splitlines()
    assert [line.split() for line in out] == [
        ["floor", "12", "lines", "1", "files"],
        ["ground.py", "1", "lines", "1", "files"],
        ["all", "13", "lines", "2", "files"],
    ]
