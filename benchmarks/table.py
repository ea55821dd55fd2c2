"""The results as text: lines for a terminal, and the page for the documentation.

Both have, for each requirement, its bound, the measured value, and whether it is met; for each
measurement, the median, minimum and maximum; and for each missing measurement, the reason.
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
    """Yield the lines of one row for a terminal."""
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
            f"  required: {need.what} {bound(need)}; measured: {value(need)}; "
            f"{'met' if need.met else 'missed'}"
        )


def measured_on(machine: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the machine, the versions and the tokenizer, one line each."""
    return (
        f"{machine['processor']}, {machine['cores']} cores, load before the run "
        f"{machine['load_before']}; "
        f"{machine['system']}, Python {machine['python']}",
        ", ".join(f"{name} {is_ or 'missing'}" for name, is_ in machine["versions"].items()),
        f"tokenizer {machine['tokenizer']} ({machine['vocab_size']:,} ids), encoded by abut's "
        f"`{machine['encoder']}` encoder",
    )


def page(
    rows: Sequence[Row],
    machine: Mapping[str, Any],
    command: str,
    picture: str | None,
    *,
    reservations: Iterable[str] = (),
) -> str:
    """Return the page as Markdown.

    Args:
        rows: the measured rows.
        machine: the machine that they were measured on.
        command: the command that regenerates the page.
        picture: the file name of the chart; None without one.
        reservations: why these are not the results of all rows at full size; they come first.
    """
    parts = [
        "# Performance\n",
        *(f"**{reservation}**\n" for reservation in reservations),
        "This page compares the speed and memory of abut with the packages that it replaces. "
        "`make bench` measures everything and regenerates the page.\n",
        "In each round of a row, all sides run one after the other in one process, on one core, "
        "each with one thread. There are three exceptions: each run of loading, memory and turns "
        "has its own process, each server has its own process, and encoding many texts in one call "
        "uses all cores in a separate process. Times are compared only if the results are equal; "
        "each row lists what was compared.\n",
        "".join(f"- {line}\n" for line in (f"command: `{command}`", *measured_on(machine))),
        "## Requirements\n",
        "`a ÷ b` is the median time of a divided by the median time of b, or the median memory if "
        "the line says memory or size. Lines with “measured alone” ran without the peers, because "
        "the peers evict abut's data from the CPU caches between two calls, so the same call takes "
        "longer next to them. The measurements below have both.\n",
        *_table(("work", "comparison", "required", "measured", ""), _need_cells(rows)),
    ]
    if picture is not None:
        parts += [
            "## Time per turn by conversation length\n",
            f"![Time per turn by tokens in the conversation]({picture})\n",
        ]
    parts.append("## All measurements\n")
    for row in rows:
        parts += [f"### {row.work[:1].upper()}{row.work[1:]}\n", *_section(row)]
    return "\n".join(parts)


def bound(need: Need) -> str:
    """Return the bound of a requirement as text."""
    return f"{_SIGNS[need.how]} {number(need.bound, need.unit)}"


def value(need: Need) -> str:
    """Return the measured value of a requirement as text."""
    return number(need.value, need.unit)


def number(value: float, unit: Unit | None) -> str:
    """Return a value with its unit, or a ratio, in three digits."""
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
    notes = [f"Compared: {row.equal}.", *row.notes]
    notes += [f"{peer} was not measured: {reason}" for peer, reason in row.missing.items()]
    yield "\n".join(f"- {note}" for note in notes) + "\n"


def _table(head: Sequence[str], cells: Iterator[tuple[str, ...]] | list[Any]) -> Iterator[str]:
    table = [head, ["---"] * len(head), *cells]
    yield "".join(f"| {' | '.join(line)} |\n" for line in table)
