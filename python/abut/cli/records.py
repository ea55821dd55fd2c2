"""The commands that read recorded rollouts: `abut show`, `abut view` and `abut export`."""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from abut.cli.command import Commands, asked_to_stop
from abut.errors import AbutError, printable


def add_to(commands: Commands) -> None:
    """Add the commands and their options."""
    _add_view(commands)
    _add_show(commands)
    _add_export(commands)


def _add_view(commands: Commands) -> None:
    parser = commands.add_parser(
        "view",
        help="make a page of recorded rollouts, token by token, and open it",
        description="Make one HTML file that shows each token of recorded rollouts with its mask, "
        "logprob and seam. It needs no server and no network. With --watch, serve the page to this "
        "machine instead, and refresh it while training writes.",
    )
    _add_records(parser)
    _add_without(parser)
    _add_tokenizer(parser)
    parser.add_argument(
        "--images",
        type=Path,
        metavar="FOLDER",
        help="the folder of record_images: show a thumbnail of each image",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE.html", help="default: next to the records"
    )
    parser.add_argument("--no-open", action="store_true", help="do not open it in a browser")
    parser.add_argument(
        "--watch",
        action="store_true",
        help="instead of writing a file, serve the page on 127.0.0.1 until Ctrl-C, and refresh it",
    )
    parser.add_argument(
        "--port", type=int, metavar="N", help="the port of --watch; default: a free one"
    )
    parser.set_defaults(run=view)


def _add_show(commands: Commands) -> None:
    parser = commands.add_parser("show", help="print recorded rollouts")
    _add_records(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="a line for each rollout")
    what.add_argument("--steps", action="store_true", help="a line for each step")
    what.add_argument(
        "--index",
        type=int,
        help="the number of a rollout, from 0; negative numbers count from the end (-1)",
    )
    what.add_argument("--id", dest="rollout_id", help="the id of a rollout")
    _add_tokenizer(parser)
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    parser.set_defaults(run=show)


def _add_export(commands: Commands) -> None:
    parser = commands.add_parser("export", help="make training data from recorded rollouts")
    _add_records(parser)
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument(
        "--sft",
        nargs="?",
        const="ids",
        choices=("ids", "messages"),
        help="columns for SFTTrainer: ids with a mask of the sampled tokens (default), or messages",
    )
    kind.add_argument("--prompts", action="store_true", help="a dataset of prompts, each once")
    kind.add_argument("--records", action="store_true", help="the records themselves")
    _add_without(parser)
    parser.add_argument(
        "-o", "--output", type=Path, help="a new file: .jsonl or .parquet; default: stdout"
    )
    parser.set_defaults(run=export)


def _add_records(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        type=Path,
        nargs="+",
        metavar="PATH",
        help="a JSONL file of rollouts, a folder of Parquet files, a folder of several runs, or "
        "several of these",
    )
    parser.add_argument(
        "--where",
        default="",
        metavar="CONDITIONS",
        help="only rollouts that pass, such as 'reward<0.5 step:100 error:timeout turns>3'",
    )


def _add_without(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--without",
        type=lambda names: tuple(filter(None, names.split(","))),
        default=(),
        metavar="FIELDS",
        help="fields to leave out, such as columns,traceback, which hold answers and paths",
    )


def _add_tokenizer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokenizer", help="name, folder or tokenizer.json; default: the record's")


def view(args: argparse.Namespace) -> int:
    """Write the page, or serve it, and open it; returns the exit status."""
    if args.watch:
        return _watch(args)
    if args.port is not None:
        raise ValueError("--port needs --watch: without --watch, abut writes the page to a file")
    from abut.records.viewer.page import make_page

    page = make_page(
        args.paths,
        where=args.where,
        without=args.without,
        tokenizer=args.tokenizer,
        images=args.images,
        on_large=_say_size if args.output else _refuse_size,
    )
    path = page.save(args.output or page_path(args.paths[0]))
    megabytes = path.stat().st_size / 1e6
    sys.stderr.write(f"abut view: {page.rollouts} rollouts, {megabytes:.1f} MB\n")
    for trouble in page.troubles:
        sys.stderr.write(printable(f"abut view: {trouble}\n"))
    sys.stdout.write(f"{path}\n")
    if not args.no_open:
        open_page(path)
    return 0


def _say_size(size: float) -> None:
    sys.stderr.write(f"abut view: the page will have {_megabytes(size)}\n")


def _refuse_size(size: float) -> None:
    # Nobody who only wants a look expects minutes of writing, and then a page that hardly opens.
    raise ValueError(
        f"the page would have {_megabytes(size)}, and browsers are slow above 50 MB\n"
        "hint: --where 'step>90' shows fewer rollouts; --watch serves the page instead; "
        "-o FILE.html writes it anyway"
    )


def _megabytes(size: float) -> str:
    return f"about {size / 1e6:,.0f} MB"


def _watch(args: argparse.Namespace) -> int:
    from abut.records.filter import parse_filter
    from abut.records.viewer.catalog import Catalog
    from abut.records.viewer.page import check_left_out, name_of
    from abut.records.viewer.watch import Watch

    if args.output is not None:
        raise ValueError(
            "--output names a file, but --watch serves the page instead of writing it\n"
            "hint: drop one of them"
        )
    parse_filter(args.where)
    check_left_out(args.without)

    def say(text: str) -> None:
        sys.stderr.write(printable(f"abut view: {text}\n"))
        sys.stderr.flush()

    catalog = Catalog(
        args.paths, without=args.without, tokenizer=args.tokenizer, images=args.images
    )
    with asked_to_stop() as stops:  # before the address is printed, so that no signal is lost
        watch = Watch(
            catalog,
            name_of(args.paths),
            port=args.port or 0,
            where=args.where,
            without=args.without,
            on_trouble=lambda text: say(f"not read: {text}"),
        )
        try:
            sys.stdout.write(f"{watch.url}\n")
            sys.stdout.flush()
            say("serving the page on this machine; press Ctrl-C to stop")
            if not args.no_open and not _opened(watch.url):
                port = urlsplit(watch.url).port
                tunnel = f"ssh -L {port}:127.0.0.1:{port} HOST"
                say(f"this machine has no browser; on another one, run {tunnel}")
            while not stops.wait(1.0):  # Windows interrupts no wait without an end
                pass
        finally:
            watch.close()
    return 0


def page_path(records: Path) -> Path:
    """Return the path of the page of records, in the folder that they are in."""
    from abut.records.read import named

    records = named(records)
    return records.with_name(f"{records.name.removesuffix('.jsonl')}.html")


def open_page(path: Path) -> None:
    """Open the page in a browser, if there is one."""
    if not _opened(path.resolve().as_uri()):
        sys.stderr.write("abut view: this machine has no browser; open the file on another one\n")


def _opened(address: str) -> bool:
    import webbrowser

    return _has_screen() and webbrowser.open(address)


def _has_screen() -> bool:
    # Without a screen, `webbrowser` would start a browser in the terminal and wait for it.
    if os.environ.get("BROWSER") or sys.platform in ("win32", "darwin"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def show(args: argparse.Namespace) -> int:
    """Print a list, a summary or one rollout; returns the exit status."""
    for line in _lines(args):
        sys.stdout.write(line + "\n")
    return 0


def _lines(args: argparse.Namespace) -> Iterator[str]:
    from abut.records.show import list_records, load_tokenizer, pick_record, render, summarize

    records = _wanted(args)
    picked = args.index is not None or args.rollout_id is not None
    if args.steps:
        yield from summarize(records)
        return
    if args.list or (args.where and not picked):
        yield from list_records(records)
        return
    record = pick_record(records, args.index, args.rollout_id)
    tokenizer, source = None, args.tokenizer or record["tokenizer"]
    if source:
        try:
            tokenizer = load_tokenizer(source)
        except (AbutError, OSError, ValueError) as error:
            if args.tokenizer:
                raise
            sys.stderr.write(printable(f"abut show: tokens have no text: {error}\n"))
    color = args.color == "always" or (args.color == "auto" and sys.stdout.isatty())
    yield from render(record, tokenizer, color=color)


def export(args: argparse.Namespace) -> int:
    """Write the rows; returns the exit status."""
    from abut.records.export import Kind, export, write_rows

    kind: Kind = args.sft or ("prompts" if args.prompts else "records")
    rows = export(_wanted(args), kind, without=args.without)
    count = write_rows(rows, args.output, sys.stdout)
    if args.output is not None:
        sys.stderr.write(f"abut export: {count} rows in {args.output}\n")
    return 0


def _wanted(args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
    from abut.records.filter import parse_filter
    from abut.records.read import read_records

    return filter(parse_filter(args.where), read_records(args.paths))
