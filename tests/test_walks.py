"""The walks in docs/background/architecture.md are those that values take."""

import os
import subprocess
import sys

import pytest

from tests.kit.checkout import IMPORT_PATH, ROOT

pytest.importorskip("transformers")

# Threads that watch others run code of their own now and then, and two threads may enter files in
# another order. So a walk may be walked again, and its order is not compared, but files that the
# code does not enter never pass.
CODE = """
from scripts.walks import BEGIN, END, PAGE, walks
def files(text):
    return [sorted(line.split("`")) for line in text.replace(" → ", "").splitlines()]
page = files(BEGIN + PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0] + END)
walked = [walks()]
while files(walked[-1]) != page and len(walked) < 5:
    walked.append(walks())
print(files(walked[-1]) == page, walked[-1])
"""


def test_the_page_has_the_walks() -> None:
    # In a process of its own: threads that other tests left in the cache are not profiled.
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env=os.environ | {"PYTHONPATH": IMPORT_PATH},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("True"), (
        f"run python -m scripts.walks: {done.stdout}{done.stderr}"
    )
