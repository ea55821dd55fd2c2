"""The encoding rows compare all ids, name missing tokenizers, and drop peers that differ."""

import json
import types
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abut._native import Tokenizer
from abut.demo.model import ASSETS
from benchmarks import batching, encoders
from benchmarks.encoders import ABUT, GIGATOKEN, SHAPES, TIKTOKEN, TOKENIZERS, Shape, new_tokenizer
from benchmarks.figures import Row
from benchmarks.kinds import KINDS, text_of
from benchmarks.peers import PeerMissing
from benchmarks.rows import encode, encode_batch, encode_kinds, encode_loop
from benchmarks.scale import Scale
from benchmarks.texts import Corpus
from benchmarks.timing import available_cores
from benchmarks.workbench import Workbench
from benchmarks.worker import measure
from tests.kit.data.tokenizers_made import word_level

pytest.importorskip("tokenizers")

FILE = ASSETS / "tokenizer.json"
FIRST = "text seen for the first time"


class RanksAlone:
    """Encodes a word like tiktoken: merges the pair with the lowest rank, again and again."""

    def __init__(self, *, name: str, pat_str: str, mergeable_ranks: Any, special_tokens: Any):
        self.pattern, self.ranks = pat_str, mergeable_ranks
        assert special_tokens == {}

    def encode_ordinary(self, text: str) -> list[int]:
        # Oniguruma knows the pattern; `tokenizers` has it, and cuts words by it alone.
        from tokenizers import Regex, pre_tokenizers

        words = pre_tokenizers.Split(Regex(self.pattern), "isolated").pre_tokenize_str(text)
        return [id for word, _ in words for id in self._word(word.encode())]

    def _word(self, word: bytes) -> list[int]:
        pieces = [word[at : at + 1] for at in range(len(word))]
        while True:
            ranks = [self.ranks.get(a + b) for a, b in pairwise(pieces)]
            known = [rank for rank in ranks if rank is not None]
            if not known:
                return [self.ranks[piece] for piece in pieces]
            at = ranks.index(min(known))
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


@pytest.fixture
def workbench(monkeypatch: pytest.MonkeyPatch) -> Workbench:
    monkeypatch.delenv("ABUT_TOKENIZERS", raising=False)
    return Workbench(ASSETS, Scale.quick(), {})


def with_peers(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch, **modules: types.SimpleNamespace
) -> None:
    """Replace these peers of a workbench."""
    installed = workbench.peer

    def peer(name: str, module: str | None = None) -> Any:
        if name in modules:
            return modules[name]
        if name in ("gigatoken", "tiktoken"):
            raise PeerMissing("not in this test")
        return installed(name, module)

    monkeypatch.setattr(workbench, "peer", peer)


def gigatoken_that(spoil: Any) -> types.SimpleNamespace:
    """Encodes as abut does, then changes the ids."""

    class Spoiled:
        def __init__(self, file: Path) -> None:
            self._right = Tokenizer.from_file(file)

        def encode(self, text: str) -> Any:
            return spoil(text, self._right.encode(text).astype(np.uint32))

    return types.SimpleNamespace(Tokenizer=Spoiled)


# ---- which tokenizers


def test_a_tokenizer_that_is_not_there_is_named_with_its_place_and_its_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shape = Shape("Llama 3", "llama3", "meta-llama/Llama-3.1-8B")
    monkeypatch.delenv("ABUT_TOKENIZERS", raising=False)
    for _ in range(2):
        with pytest.raises(PeerMissing) as caught:
            shape.file()
        # The page is read elsewhere, so it does not have this machine's value of the variable.
        assert str(caught.value) == (
            "$ABUT_TOKENIZERS/llama3/tokenizer.json is missing: copy it from "
            "meta-llama/Llama-3.1-8B"
        )
        monkeypatch.setenv("ABUT_TOKENIZERS", str(tmp_path))
    (tmp_path / "llama3").mkdir()
    (tmp_path / "llama3" / "tokenizer.json").write_text("{}")
    assert shape.file() == tmp_path / "llama3" / "tokenizer.json"


def test_each_shape_that_is_there_is_measured_and_each_other_one_is_missing(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here, *others = SHAPES
    (tmp_path / here.folder).mkdir()
    (tmp_path / here.folder / "tokenizer.json").write_bytes(FILE.read_bytes())
    monkeypatch.setenv("ABUT_TOKENIZERS", str(tmp_path))
    with_peers(workbench, monkeypatch)
    row = encode.measure(workbench)
    cases = {figure.case for figure in row.figures}
    assert {FIRST, f"{FIRST}, {here.name}", "the same code again"} <= cases
    assert {shape.name for shape in others} <= row.missing.keys()
    assert here.name not in row.missing
    patterns = {f"{FIRST}, {shape.name}'s pattern" for shape in others if shape.pattern}
    assert len(patterns) == 2
    assert patterns <= cases


def test_a_pattern_on_another_vocabulary_is_encoded_by_the_fast_encoder(tmp_path: Path) -> None:
    for shape in SHAPES:
        if shape.pattern is None:
            with pytest.raises(PeerMissing, match="does not split words with a pattern"):
                shape.on_vocabulary_of(FILE, tmp_path)
            continue
        tokenizer = Tokenizer.from_file(shape.on_vocabulary_of(FILE, tmp_path))
        assert tokenizer.profile()["encoder"] == "fast", shape.name
    words = tmp_path / "tokenizer.json"
    words.write_text(word_level(vocab="abc"))
    with pytest.raises(PeerMissing, match="is not a byte-level BPE tokenizer"):
        SHAPES[0].on_vocabulary_of(words, tmp_path)


def test_a_new_tokenizer_knows_no_words_of_another() -> None:
    shared, first, second = Tokenizer.from_file(FILE), new_tokenizer(FILE), new_tokenizer(FILE)
    assert Tokenizer.from_file(FILE) is shared
    assert len({id(tokenizer) for tokenizer in (shared, first, second)}) == 3
    assert first.encode("the words").tolist() == shared.encode("the words").tolist()


# ---- who is compared


def test_ranks_are_those_of_the_file(workbench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merging by rank alone gives the same tokens as the merges."""
    with_peers(workbench, monkeypatch, tiktoken=types.SimpleNamespace(Encoding=RanksAlone))
    sides, missing = encoders.peers_of(workbench, FILE, workbench.tokenizer)
    assert missing == {GIGATOKEN: "not in this test"}
    text = Corpus(5).mixed(3_000)
    assert sides[TIKTOKEN](text) == workbench.tokenizer.encode(text).tolist()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda source: source["model"]["merges"].reverse(),
            "tiktoken needs ids in the order of merges, and these are not",
        ),
        (
            lambda source: source.update(pre_tokenizer=None),
            "tiktoken needs a byte-level tokenizer with one pattern, and this one is different",
        ),
    ],
)
def test_what_tiktoken_cannot_be_given_is_said(
    change: Any, reason: str, workbench: Workbench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_peers(workbench, monkeypatch, tiktoken=types.SimpleNamespace(Encoding=RanksAlone))
    source = json.loads(FILE.read_text(encoding="utf-8"))
    change(source)
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(source))
    _, missing = encoders.peers_of(workbench, file, workbench.tokenizer)
    assert missing[TIKTOKEN] == reason


def test_a_file_that_gigatoken_cannot_read_is_its_reason(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: Path) -> None:
        raise ValueError("no such pattern")

    with_peers(workbench, monkeypatch, gigatoken=types.SimpleNamespace(Tokenizer=refuse))
    _, missing = encoders.peers_of(workbench, FILE, workbench.tokenizer)
    assert missing[GIGATOKEN] == "gigatoken cannot read this tokenizer: no such pattern"


def test_a_loop_over_texts_of_each_size_is_measured_with_warm_and_with_evicted_caches(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_peers(workbench, monkeypatch, gigatoken=gigatoken_that(lambda text, ids: ids))
    row = encode_loop.measure(workbench)
    sides = {(figure.case, figure.side) for figure in row.figures}
    for size in Scale.quick().loop_sizes:
        for case in (encode_loop.FIRST, encode_loop.AGAIN, encode_loop.EVICTED):
            named = f"code, {size:,} bytes each, Llama 3's pattern, {case}"
            assert {(named, ABUT), (named, GIGATOKEN)} <= sides
            assert f"{GIGATOKEN} ÷ {ABUT}, {named}" in {need.what for need in row.needs}
    with_peers(workbench, monkeypatch, gigatoken=gigatoken_that(lambda text, ids: ids[:-1]))
    assert "differ" in str(measure("encode_loop", workbench).error)


def test_gigatoken_is_required_to_be_no_faster_in_any_case(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_peers(workbench, monkeypatch, gigatoken=gigatoken_that(lambda text, ids: ids))
    row = encode.measure(workbench)
    needs = {need.what: need.bound for need in row.needs}
    cases = {figure.case for figure in row.figures}
    assert len(cases) == 4 * 4, "those of the tokenizer and of three patterns"
    assert needs.items() >= {f"{GIGATOKEN} ÷ {ABUT}, {case}": 1 for case in cases}.items()
    (told,) = [note for note in row.notes if note.startswith(f"abut is faster than {GIGATOKEN}")]
    assert " of 16 cases" in told


def test_a_peer_whose_tokens_differ_has_no_times_and_the_others_have(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only in one text, so that it was timed before.
    texts: list[str] = []

    def spoil(text: str, ids: Any) -> Any:
        texts.append(text)
        return ids[:-1] if text != texts[0] else ids

    with_peers(workbench, monkeypatch, gigatoken=gigatoken_that(spoil))
    row = encode.measure(workbench)
    assert row.missing[GIGATOKEN].startswith(
        "tokens of mixed text: abut and gigatoken encode differ, first at index "
    )
    assert GIGATOKEN not in {figure.side for figure in row.figures}
    assert {ABUT, TOKENIZERS} <= {figure.side for figure in row.figures}
    assert not any(GIGATOKEN in need.what for need in row.needs)


def test_what_was_won_and_lost_is_told() -> None:
    row = Row("encode", "encode")
    for case, ours in (("a", 1.0), ("b", 3.0)):
        row.add(case, {ABUT: [ours], GIGATOKEN: [2.0]})
    encode._tell(row, GIGATOKEN, ["a", "b", "c"])
    encode._tell(row, TIKTOKEN, ["a", "b"])
    assert row.notes == [f"abut is faster than {GIGATOKEN} in 1 of 2 cases; it is slower in: b."]
    row.notes.clear()
    encode._tell(row, GIGATOKEN, ["a"])
    assert row.notes == [f"abut is faster than {GIGATOKEN} in 1 of 1 cases."]


# ---- kinds of text


def test_each_kind_is_text_of_that_size_and_another_one_for_each_seed() -> None:
    texts = [text_of(kind, seed, 3_000) for kind in KINDS for seed in (0, 1)]
    assert len(set(texts)) == len(texts)
    assert all(2_997 <= len(text.encode()) <= 3_000 for text in texts)
    assert texts[-1] == text_of(KINDS[-1], 1, 3_000)


def test_the_slowest_kind_must_not_be_a_fifth_slower() -> None:
    row = Row("encode_kinds", "encode")
    for kind in KINDS:
        slow = {KINDS[0]: 2.0, KINDS[1]: 2.5}
        row.add(f"{kind}, again", {ABUT: [slow.get(kind, 1.0)], GIGATOKEN: [2.0]})
    for case in (encode_kinds.FIRST, encode_kinds.AGAIN):
        encode_kinds._require_of_slowest(row, case)
    (need,) = row.needs
    assert need.what.endswith(f"slowest kind ({KINDS[1]}, again)")
    assert not need.met


@pytest.mark.parametrize("wrong", [True, False])
def test_a_kind_that_gigatoken_writes_otherwise_is_left_out(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    def spoil(_: str, ids: Any) -> Any:
        return ids + 1 if wrong else ids

    with_peers(workbench, monkeypatch, gigatoken=gigatoken_that(spoil))
    monkeypatch.setattr(encode_kinds, "KINDS", ("emoji", "tabs"))
    row = measure("encode_kinds", workbench)
    assert row.error is None
    assert {figure.side for figure in row.figures} == ({ABUT} if wrong else {ABUT, GIGATOKEN})
    assert list(row.missing) == ([f"{GIGATOKEN}, emoji", f"{GIGATOKEN}, tabs"] if wrong else [])
    assert bool(row.needs) is not wrong


# ---- many texts at once


def test_a_batch_is_compared_text_by_text() -> None:
    ours = [np.array([1, 2]), np.array([3])]
    batching._require_same("a peer", ours, [[1, 2], [3]])
    for theirs in ([[1], [2, 3]], [[1, 2], [4]], [[1, 2]]):
        with pytest.raises(batching.ResultsDiffer, match="abut and a peer differ"):
            batching._require_same("a peer", ours, theirs)


def test_batches_that_differ_fail_the_row(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"differ": "the tokens of the texts: abut and tokenizers differ"}
    monkeypatch.setattr(encode_batch, "run_module", lambda *arguments, **options: said)
    row = measure("encode_batch", workbench)
    assert row.error == said["differ"]
    assert row.figures == []


def test_a_batch_that_differs_from_tokenizers_is_said_by_the_process_that_measures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(word_level(vocab="".join(map(chr, range(32, 127)))))
    wrong = Tokenizer.from_str(word_level(vocab="zyx"))
    monkeypatch.setattr(batching, "new_tokenizer", lambda _: wrong)
    batching.main(
        {
            "file": str(file),
            "cores": sorted(available_cores()),
            "cases": {"few": [2, 100, 1]},
            "reasons": {"gigatoken": "not in this test"},
        }
    )
    said = json.loads(capsys.readouterr().out)
    assert list(said) == ["differ"]
    assert said["differ"].startswith(f"the tokens of the texts: abut and {batching.TOKENIZERS} ")
