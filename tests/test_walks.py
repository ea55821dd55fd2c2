"""The walks in docs/architecture.md are those that values take."""

import os
import subprocess
import sys

import pytest

from tests.kit.checkout import ROOT

pytest.importorskip("transformers")

# Threads that watch others run code of their own now and then, and two threads may enter files in
# another order. So a walk may be walked again, but one that the code does not take never passes.
CODE = """
from scripts.walks import PAGE, walks
page = PAGE.read_text("utf-8")
walked = [walks()]
while walked[-1] not in page and len(walked) < 5:
    walked.append(walks())
print(walked[-1] in page, walked[-1])
"""


def test_the_page_has_the_walks() -> None:
    # In a process of its own: threads that other tests left in the cache are not profiled.
    path = os.pathsep.join([str(ROOT), str(ROOT / "python")])
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env=os.environ | {"PYTHONPATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("True"), (
        f"run python -m scripts.walks: {done.stdout}{done.stderr}"
    )
