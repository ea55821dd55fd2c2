"""`abut show`: one recorded rollout in the terminal, its tokens coloured by who wrote them."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from abut._native import Tokenizer
from abut.parts import PROVENANCE
from abut.records.record import read_records

_COLORS = {"sampled": "1;32", "close": "33", "env": "36", "prompt": "0", "scaffold": "2"}


def pick_record(path: Path, index: int | None, rollout_id: str | None) -> Mapping[str, Any]:
    """Return one record of a file: by id, or by index (negative: from the end).

    Raises:
        ValueError: there is no such record.
    """
    records = list(read_records(path))
    if rollout_id is not None:
        found = [record for record in records if record["rollout_id"] == rollout_id]
        if not found:
            raise ValueError(f"{path}: no rollout {rollout_id!r} among {len(records)}")
        return found[-1]
    index = -1 if index is None else index
    if not -len(records) <= index < len(records):
        raise ValueError(f"{path}: no rollout {index}, the file has {len(records)}")
    return records[index]


def load_tokenizer(source: str | None) -> Tokenizer:
    """Load the tokenizer of a record: a tokenizer.json, a folder, or a model's name.

    Raises:
        ValueError: the record names none.
    """
    if not source:
        raise ValueError(
            "the record does not say which tokenizer its ids belong to\nhint: pass --tokenizer"
        )
    path = Path(source)
    if path.is_dir() and (path / "tokenizer.json").is_file():
        return Tokenizer.from_file(path / "tokenizer.json")
    if path.is_file():
        return Tokenizer.from_file(path)
    return Tokenizer.from_pretrained(source)


def render(record: Mapping[str, Any], tokenizer: Tokenizer, *, color: bool) -> Iterator[str]:
    """Yield the lines of one record. Without color, sampled text stands between ⟦ and ⟧."""
    sampled = sum(record["env_mask"])
    rollout_id = _printable(record["rollout_id"])
    yield f"rollout {rollout_id}  step {record.get('step')}  mode {record.get('mode')}"
    yield (
        f"reward {record['reward']}  stop_reason {record['stop_reason']}  "
        f"turns {len(record['turns'])}  attempts {record['attempts']}  "
        f"{record['seconds']:.2f} s"
    )
    if record["error"]:
        yield f"error {_printable(record['error'])}"
        if traces := record.get("attempt_tracebacks"):  # older records have none
            yield _printable(traces[-1])
    for number, turn in enumerate(record["turns"]):
        yield (
            f"turn {number}  tokens {turn['start']}:{turn['end']}  {turn['finish_reason']}  "
            f"generate {turn['generate_s']:.3f} s  env {turn['env_s']:.3f} s  "
            f"reward {turn['reward']}"
        )
    verdicts = ", ".join(
        seam["kind"] if seam["exact"] else f"{seam['kind']} (inexact)" for seam in record["seams"]
    )
    yield f"seams {verdicts or 'none'}"
    ids = [*(record["prompt_ids"] or []), *record["completion_ids"]]
    yield (
        f"{len(record['prompt_ids'] or [])} prompt tokens, "
        f"{len(record['completion_ids'])} completion tokens, {sampled} sampled"
    )
    yield ""
    if color:
        legend = "  ".join(f"\x1b[{_COLORS[name]}m{name}\x1b[0m" for name in PROVENANCE)
        yield f"{legend}\n"
    yield "".join(_pieces(ids, record["provenance"], tokenizer, color))


def _pieces(
    ids: list[int], provenance: list[int], tokenizer: Tokenizer, color: bool
) -> Iterator[str]:
    # A failed rollout has a prompt but no provenance.
    codes = provenance or [PROVENANCE.index("prompt")] * len(ids)
    at = 0
    for code, group in itertools.groupby(codes):
        end = at + len(list(group))
        text, name = tokenizer.decode(ids[at:end]), PROVENANCE[code]
        at = end
        text = _printable(text)
        if color:
            yield f"\x1b[{_COLORS[name]}m{text}\x1b[0m"
        else:
            yield f"⟦{text}⟧" if name == "sampled" else text


def _printable(text: str) -> str:
    """Text of a model or an environment may hold escape sequences: a terminal must not obey."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)
