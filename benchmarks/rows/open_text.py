"""Text that continues: append 100 bytes to a short and a long text whose tokens are not final."""

from collections.abc import Callable
from typing import Any

from abut import Trajectory
from benchmarks.figures import Need, Row, require_same
from benchmarks.texts import Corpus, Replies
from benchmarks.timing import Check, Sides, all_rounds, interleave
from benchmarks.workbench import Workbench

PIECE_BYTES = 100
LIMIT_S = 30e-6


def measure(workbench: Workbench) -> Row:
    """Append pieces to two open segments."""
    scale = workbench.scale
    row = Row(
        "open_text",
        f"append {PIECE_BYTES} bytes to an open segment of "
        + " and ".join(f"{size:,} bytes" for size in scale.open_bytes),
        equal="all token ids, with one `tokenizers` encode of the whole text, in every round",
    )
    corpus, replies, rounds = Corpus(4), Replies(4, PIECE_BYTES), []
    for _ in range(scale.open_rounds):
        texts = {case(size): corpus.mixed(size) for size in scale.open_bytes}
        pieces = replies.take(scale.open_appends + 1)
        opened = {name: Trajectory(workbench.tokenizer) for name in texts}
        for name, text in texts.items():
            opened[name].append_text(text)
        rounds.append(interleave(_appends(opened, pieces), scale.open_appends))
        for name, text in texts.items():
            whole = "".join([text, *pieces])
            ids = workbench.oracle.encode(whole, add_special_tokens=False).ids
            require_same(f"text in pieces, {name}", "tokenizers", opened[name].ids, ids)
    for name, values in all_rounds(rounds).items():
        row.add(name, {"abut": values})
    _require(row, *map(case, scale.open_bytes))
    return row


def case(size: int) -> str:
    """Return the name of the case of a size."""
    return f"to {size:,} bytes"


def _appends(
    opened: dict[str, Trajectory], pieces: list[str]
) -> Callable[[int], tuple[Sides, Check]]:
    """One round appends one piece to each of the texts."""

    def prepare(number: int) -> tuple[Sides, Check]:
        piece = pieces[number + 1]

        def appending(trajectory: Trajectory) -> Callable[[], Any]:
            return lambda: trajectory.append_text(piece)

        # The whole is compared after the last piece.
        return {name: appending(to) for name, to in opened.items()}, lambda _: None

    return prepare


def _require(row: Row, short: str, long: str) -> None:
    row.need_ratio(f"abut, {long} ÷ {short}", ("abut", long), ("abut", short), "at most", 1.2)
    for name in (short, long):
        median = row.median("abut", name)
        assert median is not None
        row.needs.append(Need(f"abut, {name}", median, "at most", LIMIT_S, "s"))
