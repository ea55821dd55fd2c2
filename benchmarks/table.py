"""The results in words: lines for a terminal, and the page for the documentation.

Both say of every requirement what it needs, what was measured, and whether that is enough; of every
figure the median and the spread; and what was not measured, and why.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.figures import Figure, Need, Row, Unit

_SIGNS = {"at least": "≥", "at most": "≤"}
_SCALES: dict[Unit, tuple[tuple[float, str], ...]] = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "B": ((1e9, "GB"), (1e6, "MB"), (1.0, "B")),
    "B/token": ((1.0, "B/token"),),
    "/s": ((1.0, "/s"),),
    "rows": ((1.0, "rows"),),
    "tokens": ((1.0, "tokens"),),
}


def lines(row: Row) -> Iterator[str]:
    """One row for a terminal."""
    yield f"\n{row.work}"
    if row.error is not None:
        yield f"  NOT MEASURED: {row.error}"
        return
    case = None
    for figure in row.figures:
        if figure.case != case:
            case = figure.case
            yield f"  {case:<46}{'median':>15}{'min':>15}{'max':>15}  runs"
        median, least, most = _spread(figure)
        yield f"    {figure.side:<44}{median:>15}{least:>15}{most:>15}{len(figure.values):>6}"
    for peer, reason in row.missing.items():
        yield f"    {peer}: not measured: {reason}"
    for need in row.needs:
        yield (
            f"  needs {need.what} {bound(need)}, got {value(need)}: "
            f"{'met' if need.met else 'missed'}"
        )


def measured_on(machine: Mapping[str, Any]) -> tuple[str, str, str]:
    """The machine, the versions and the tokenizer, a line each."""
    return (
        f"{machine['processor']}, {machine['cores']} cores, load {machine['load_before']} before; "
        f"{machine['system']}, Python {machine['python']}",
        ", ".join(f"{name} {is_ or 'missing'}" for name, is_ in machine["versions"].items()),
        f"tokenizer {machine['tokenizer']}, {machine['vocab_size']:,} ids, abut's encoder "
        f"{machine['encoder']}",
    )


def page(
    rows: Sequence[Row],
    machine: Mapping[str, Any],
    command: str,
    picture: str | None,
    *,
    reservations: Iterable[str] = (),
) -> str:
    """The page as Markdown.

    Args:
        rows: what was measured.
        machine: on what.
        command: how it is written anew.
        picture: the name of the picture's file; None without one.
        reservations: why these are not the figures of all rows at full size; they come first.
    """
    parts = [
        "# Performance\n",
        *(f"**{reservation}**\n" for reservation in reservations),
        "How fast abut is beside what it replaces, and what it takes of memory. Written by "
        "`make bench`: run it to write it anew. All sides of a row run in turn, round "
        "by round, on one core, each on one thread, and in one process; only loading, memory and "
        "turns are measured in processes of their own, one for each run of a side, and servers in "
        "one for each side. Many texts in one call are encoded on all cores, in one more. The "
        "numbers are medians. Times of different results are not compared: each row says what was "
        "equal.\n",
        "".join(f"- {line}\n" for line in (f"command: `{command}`", *measured_on(machine))),
        "## What is required\n",
        "`a ÷ b` is the median of a over the median of b: of their times, or of their memory where "
        "the line says memory. How little a call depends on the length before it is measured with "
        "abut alone: beside the peers, whose megabytes of work evict caches between two calls, the "
        "same call takes longer. The figures have both.\n",
        *_table(("work", "of", "required", "measured", ""), _need_cells(rows)),
    ]
    if picture is not None:
        parts += [
            "## A turn against the length of the conversation\n",
            f"![Time of a turn against the tokens of the conversation]({picture})\n",
        ]
    parts.append("## All figures\n")
    for row in rows:
        parts += [f"### {row.work[:1].upper()}{row.work[1:]}\n", *_section(row)]
    return "\n".join(parts)


def bound(need: Need) -> str:
    """What is required, as text."""
    return f"{_SIGNS[need.how]} {number(need.bound, need.unit)}"


def value(need: Need) -> str:
    """What was measured, as text."""
    return number(need.value, need.unit)


def number(value: float, unit: Unit | None) -> str:
    """A figure with its unit, or a ratio, in three digits."""
    if unit is None:
        return f"{value:,.0f}x" if value >= 100 else f"{value:.3g}x"
    scales = _SCALES[unit]
    scale, name = next((pair for pair in scales if value >= pair[0]), scales[-1])
    scaled = value / scale
    return f"{scaled:,.0f} {name}" if scaled >= 100 else f"{scaled:.3g} {name}"


def _spread(figure: Figure) -> tuple[str, str, str]:
    values = (figure.median, min(figure.values), max(figure.values))
    median, least, most = (number(value, figure.unit) for value in values)
    return median, least, most


def _need_cells(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    for row in rows:
        for index, need in enumerate(row.needs):
            met = "met" if need.met else "**missed**"
            yield row.work if index == 0 else "", need.what, bound(need), value(need), met
        if row.error is not None:
            yield row.work, "", "", "not measured, see below", ""


def _section(row: Row) -> Iterator[str]:
    if row.error is not None:
        yield f"Not measured: {row.error}\n"
        return
    cells = [
        (figure.case, figure.side, *_spread(figure), str(len(figure.values)))
        for figure in row.figures
    ]
    yield from _table(("case", "side", "median", "min", "max", "runs"), cells)
    notes = [f"Equal: {row.equal}.", *row.notes]
    notes += [f"{peer} was not measured: {reason}" for peer, reason in row.missing.items()]
    yield "\n".join(f"- {note}" for note in notes) + "\n"


def _table(head: Sequence[str], cells: Iterator[tuple[str, ...]] | list[Any]) -> Iterator[str]:
    table = [head, ["---"] * len(head), *cells]
    yield "".join(f"| {' | '.join(line)} |\n" for line in table)
