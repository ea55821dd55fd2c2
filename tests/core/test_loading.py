"""Loading: a process has each tokenizer once, and a fork shares it with its parent."""

import gc
import json
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

import abut
from tests.kit.checkout import DEMO_ASSETS
from tests.kit.data.tokenizers_made import word_level

DEMO = DEMO_ASSETS / "tokenizer.json"


def test_what_is_loaded_again_is_what_is_there(tmp_path: Path) -> None:
    tokenizer = abut.Tokenizer.from_file(DEMO)
    (tmp_path / "copy.json").write_bytes(DEMO.read_bytes())
    assert abut.Tokenizer.from_file(str(DEMO)) is tokenizer
    assert abut.Tokenizer.from_file(tmp_path / "copy.json") is tokenizer
    assert abut.Tokenizer.from_str(DEMO.read_text(encoding="utf-8")) is tokenizer


def test_nothing_keeps_a_tokenizer_that_nobody_holds() -> None:
    tokenizer = abut.Tokenizer.from_str(word_level("<nobody else has it>"))
    alive = weakref.ref(tokenizer)
    del tokenizer
    gc.collect()
    assert alive() is None


def test_other_overrides_and_other_texts_are_other_tokenizers(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(DEMO.read_bytes())
    first = abut.Tokenizer.from_file(path)
    textual = abut.Tokenizer.from_file(path, textual=["<think>"])
    assert textual is not first
    assert textual.profile() != first.profile()
    # As long as before, with two tokens changed for each other.
    changed = json.loads(DEMO.read_bytes())
    vocab = changed["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    path.write_text(json.dumps(changed), encoding="utf-8")
    second = abut.Tokenizer.from_file(path)
    assert second.encode("a").tolist() == first.encode("b").tolist()


def test_a_tokenizer_that_is_there_still_says_why_it_is_refused(tmp_path: Path) -> None:
    held = abut.Tokenizer.from_file(DEMO)
    for name in ("one.json", "two.json"):
        path = tmp_path / name
        path.write_text(DEMO.read_text(encoding="utf-8")[:-9], encoding="utf-8")
        with pytest.raises(abut.TokenizerError, match=name):
            abut.Tokenizer.from_file(path)
    assert held.vocab_size


def byte_level(shift: int) -> dict[str, Any]:
    """A tokenizer of 65,792 tokens, every two bytes one of them."""
    file: dict[str, Any] = json.loads(DEMO.read_bytes())
    letters = sorted(token for token in file["model"]["vocab"] if len(token) == 1)
    pairs = [[a, b] for a in letters for b in letters]
    pairs = pairs[shift:] + pairs[:shift]
    entries = letters + ["".join(pair) for pair in pairs]
    file["model"]["vocab"] = {entry: id for id, entry in enumerate(entries)}
    file["model"]["merges"] = pairs
    return file


# Prints by how much the parent grew as it loaded, and how much a fork of it has to itself once it
# has encoded, by the same tokenizer or by one of its own.
FORK = """
import gc, os, sys
from pathlib import Path
import abut

def kilobytes(field):
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(field))

abut.Tokenizer.from_file(sys.argv[3]).encode("a text")  # what is made once in a process
gc.collect()
before = kilobytes("Private_")
tokenizer = abut.Tokenizer.from_file(sys.argv[1])
tokenizer.encode("a text")
grown = kilobytes("Private_") - before
reading, writing = os.pipe()
if not os.fork():
    before = kilobytes("Private_")
    if sys.argv[2] != sys.argv[1]:
        tokenizer = abut.Tokenizer.from_file(sys.argv[2])
    tokenizer.encode("another text, of a few words")
    os.write(writing, str(kilobytes("Private_") - before).encode())
    os._exit(0)
os.wait()
print(grown, int(os.read(reading, 99)))
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads /proc")
def test_a_fork_shares_the_tokenizers_of_its_parent(tmp_path: Path) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    one.write_text(json.dumps(byte_level(0)), encoding="utf-8")
    other.write_text(json.dumps(byte_level(1)), encoding="utf-8")

    def grown(in_fork: Path) -> tuple[int, int]:
        command = [sys.executable, "-c", FORK, str(one), str(in_fork), str(DEMO)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        loaded, forked = map(int, done.stdout.split())
        return loaded, forked

    loaded, forked = grown(one)
    assert forked < loaded / 3
    loaded, forked = grown(other)  # the negative control
    assert forked > loaded / 3
