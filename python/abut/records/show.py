"""Records in the terminal, for `abut show`: a list, a summary by step, or one token by token."""

import itertools
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from abut._native import Tokenizer
from abut.errors import printable
from abut.messages import texts_of
from abut.parts import PROVENANCE
from abut.records.recorded_messages import image_hashes
from abut.records.scores import advantages_of, reverse_kl_of, total_of

_COLORS = {"sampled": "1;32", "close": "33", "env": "36", "prompt": "0", "scaffold": "2"}


def pick_record(
    records: Iterable[Mapping[str, Any]], index: int | None, rollout_id: str | None
) -> Mapping[str, Any]:
    """Return one record: by id, or by index (negative: from the end); None: the last.

    Raises:
        ValueError: no record has that id or index.
    """
    count = 0

    def counted() -> Iterator[Mapping[str, Any]]:
        nonlocal count
        for record in records:
            count += 1
            yield record

    if rollout_id is not None:
        of_id = (record for record in counted() if record["rollout_id"] == rollout_id)
        found = list(deque(of_id, maxlen=1))
        if not found:
            raise ValueError(f"none of the {count} rollouts has the id {rollout_id!r}")
        return found[0]
    index = -1 if index is None else index
    if index >= 0:
        found = list(itertools.islice(counted(), index, index + 1))
    else:
        last = deque(counted(), maxlen=-index)
        found = [last[0]] if len(last) == -index else []
    if not found:
        raise ValueError(f"there are {count} rollouts, so there is no rollout {index}")
    return found[0]


def load_tokenizer(source: str) -> Tokenizer:
    """Load the tokenizer of a record: a tokenizer.json, a folder, or a model's name."""
    path = Path(source)
    if path.is_dir() and (path / "tokenizer.json").is_file():
        return Tokenizer.from_file(path / "tokenizer.json")
    if path.is_file():
        return Tokenizer.from_file(path)
    return Tokenizer.from_pretrained(source)


def list_records(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each record: the total reward, and that of each reward function."""
    names, records = _functions_of(records)
    titles = ("step", "mode", "group", "reward", *names, "turns", "tokens", "stopped", "rollout")
    widths = (6, 5, 9, 8, *(max(8, len(name)) for name in names), 5, 7, 21, 0)
    yield _line(titles, widths)
    for record in records:
        group, place = record["group"], record["place"]
        tokens = len(record["prompt_ids"] or ()) + len(record["completion_ids"])
        error = (record["error"] or "").partition("\n")[0]
        yield _line(
            (
                _field(_or_dash(record["step"])),
                _field(_or_dash(record["mode"])),
                "-" if group is None else f"{group}.{place}",
                _figure(total_of(record)),
                *(_figure((record["rewards"] or {}).get(name)) for name in names),
                len(record["turns"]),
                tokens,
                _field(record["stop_reason"]),
                _field(f"{record['rollout_id']}  {error}".rstrip()),
            ),
            widths,
        )


def summarize(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each step: means over its rollouts."""
    steps: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for record in records:
        steps.setdefault((record["step"], record["mode"]), []).append(
            {
                "reward": total_of(record),
                "rewards": record["rewards"] or {},
                "failed": record["error"] is not None,
                "turns": len(record["turns"]),
                "tokens": len(record["prompt_ids"] or ()) + len(record["completion_ids"]),
                "seconds": record["seconds"],
                "stop": record["stop_reason"],
            }
        )
    names = _names(row["rewards"] for rows in steps.values() for row in rows)
    widths = (6, 5, 8, 8, *(max(8, len(name)) for name in names), 7, 6, 8, 9, 0)
    counts = ("failed", "turns", "tokens", "seconds", "stopped")
    yield _line(("step", "mode", "rollouts", "reward", *names, *counts), widths)
    for (step, mode), rows in steps.items():
        stops = Counter(row["stop"] for row in rows)
        yield _line(
            (
                _field(_or_dash(step)),
                _field(_or_dash(mode)),
                len(rows),
                _figure(_mean(row["reward"] for row in rows)),
                *(_figure(_mean(row["rewards"].get(name) for row in rows)) for name in names),
                sum(row["failed"] for row in rows),
                f"{fmean(row['turns'] for row in rows):.1f}",
                f"{fmean(row['tokens'] for row in rows):.0f}",
                f"{fmean(row['seconds'] for row in rows):.2f}",
                ", ".join(f"{_field(stop)} {count}" for stop, count in stops.most_common()),
            ),
            widths,
        )


def render(record: Mapping[str, Any], tokenizer: Tokenizer | None, *, color: bool) -> Iterator[str]:
    """Yield the lines of one record. Without color, sampled text is between ⟦ and ⟧.

    Without a tokenizer, or if the rollout failed, the conversation is shown from its messages.
    """
    yield from _heading(record)
    ids = [*(record["prompt_ids"] or []), *record["completion_ids"]]
    yield ""
    if tokenizer is None or not record["completion_ids"]:
        for message in record["messages"]:
            yield f"[{_field(message['role'])}]"
            rest = {k: v for k, v in message.items() if k not in ("role", "content")}
            images = (f"[image {digest}]" for digest in image_hashes(message.get("content")))
            said = "".join([*texts_of(message), *images])
            yield printable(said + (f"\n{rest}" if rest else ""))
    if tokenizer is None:
        yield ""
        yield f"ids {' '.join(map(str, ids)) or 'none'}"
        return
    if record["completion_ids"] or not record["messages"]:
        if color:
            legend = "  ".join(f"\x1b[{_COLORS[name]}m{name}\x1b[0m" for name in PROVENANCE)
            yield f"{legend}\n"
        yield "".join(_pieces(ids, record["provenance"], tokenizer, color))


def _heading(record: Mapping[str, Any]) -> Iterator[str]:
    where = f"step {_field(_or_dash(record['step']))}  mode {_field(_or_dash(record['mode']))}"
    yield f"rollout {_field(record['rollout_id'])}  {where}"
    yield (
        f"reward {_field(record['reward'])}  stop_reason {_field(record['stop_reason'])}  "
        f"turns {len(record['turns'])}  attempts {_field(record['attempts'])}  "
        f"{record['seconds']:.2f} s"
    )
    if record["rewards"]:
        given = "  ".join(f"{_field(k)} {_figure(v)}" for k, v in record["rewards"].items())
        sums = f"total {_figure(record['total'])}  advantage {_figure(record['advantage'])}"
        yield f"rewards {given}  {sums}"
    if record["rows"]:
        rows = ", ".join(map(_row, record["rows"]))
        padding = record["padding_rows"]
        yield f"trained {rows}" + (f"  the batch has {padding} rows of padding" if padding else "")
    if record["error"]:
        yield "error " + printable(str(record["error"])).replace("\n", "\n  ")
    if traces := record["attempt_tracebacks"]:
        yield printable(str(traces[-1])).replace("\n", "\n  ")
    advantages, divergence = advantages_of(record, None), reverse_kl_of(record)
    prompt = len(record["prompt_ids"] or ())
    if divergence is not None:
        mean = _figure(float(np.nanmean(divergence)))
        yield f"teacher {_field(record['teacher'])}  reverse KL {mean} nats"
    for number, turn in enumerate(record["turns"]):
        gained = f"  advantage {_figure(advantages[number])}" if number < len(advantages) else ""
        if divergence is not None and turn["end"] > turn["start"]:
            of_turn = divergence[turn["start"] - prompt : turn["end"] - prompt]
            gained += f"  reverse KL {_figure(float(of_turn.mean()))}"
        yield (
            f"turn {number}  tokens {_field(turn['start'])}:{_field(turn['end'])}  "
            f"{_field(turn['finish_reason'])}  "
            f"generate {turn['generate_s']:.3f} s  env {turn['env_s']:.3f} s  "
            f"reward {_field(turn['reward'])}{gained}"
        )
    for number, image in enumerate(record["images"] or ()):
        yield (
            f"image {number}  tokens {_field(image['start'])}:{_field(image['end'])}  "
            f"{_field(image['width'])}x{_field(image['height'])}  {_field(image['hash'])}"
        )
    verdicts = ", ".join(
        _field(seam["kind"]) + ("" if seam["exact"] else " (inexact)") for seam in record["seams"]
    )
    yield f"seams {verdicts or 'none'}"
    yield (
        f"{len(record['prompt_ids'] or [])} prompt tokens, "
        f"{len(record['completion_ids'])} completion tokens, {sum(record['env_mask'])} sampled"
    )


def _row(row: Mapping[str, Any]) -> str:
    """Name a row that was trained; its number is absent from older records."""
    number, branch = row.get("row"), row["branch"]
    name = "row" if number is None else f"row {number}"
    of_branch = "" if branch is None else f" of branch {branch}"
    return f"{name}{of_branch} (weight {_figure(row['weight'])})"


def _pieces(
    ids: list[int], provenance: Sequence[int], tokenizer: Tokenizer, color: bool
) -> Iterator[str]:
    # A failed rollout has a prompt but no provenance.
    codes = provenance or [PROVENANCE.index("prompt")] * len(ids)
    at = 0
    for code, group in itertools.groupby(codes):
        end = at + len(list(group))
        text, name = tokenizer.decode(ids[at:end]), PROVENANCE[code]
        at = end
        text = printable(text)
        if color:
            yield f"\x1b[{_COLORS[name]}m{text}\x1b[0m"
        else:
            yield f"⟦{text}⟧" if name == "sampled" else text


_AHEAD = 256
"""How many records are read ahead to learn the names of the reward functions."""


def _functions_of(
    records: Iterable[Mapping[str, Any]],
) -> tuple[list[str], Iterator[Mapping[str, Any]]]:
    """Return the names of the reward functions, and the records, which are still streamed."""
    rest = iter(records)
    ahead = list(itertools.islice(rest, _AHEAD))
    return _names(record["rewards"] or {} for record in ahead), itertools.chain(ahead, rest)


def _names(rewards: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names to show next to the total: none if the only reward is the environment's."""
    names = list(dict.fromkeys(_field(name) for given in rewards for name in given))
    return [] if names == ["env_reward"] else names


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _line(values: Sequence[Any], widths: Sequence[int]) -> str:
    cells = (f"{value!s:<{width}}" for value, width in zip(values, widths, strict=True))
    return "  ".join(cells).rstrip()


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _or_dash(value: Any) -> Any:
    return "-" if value is None else value


def _field(value: Any) -> str:
    """Return the value as one printable line, whatever a user or a server wrote there."""
    return printable(str(value)).replace("\n", "\\n")
