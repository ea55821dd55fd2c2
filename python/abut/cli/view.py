"""`abut view`: recorded rollouts as a page that shows every token."""

import argparse
import os
import sys
from pathlib import Path

from abut.cli.arguments import Commands
from abut.cli.show import add_records
from abut.errors import printable


def add_to(commands: Commands) -> None:
    """Add the command and its options."""
    parser = commands.add_parser(
        "view",
        help="make a page of recorded rollouts, token by token, and open it",
        description="Make one HTML file that shows each token of recorded rollouts with its mask, "
        "logprob and seam. It needs no server and no network.",
    )
    add_records(parser)
    parser.add_argument(
        "--without",
        default="",
        metavar="FIELDS",
        help="fields that are left out, such as columns,traceback: answers and paths are in them",
    )
    parser.add_argument("--tokenizer", help="name, folder or tokenizer.json; default: the record's")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE.html", help="default: beside the records"
    )
    parser.add_argument("--no-open", action="store_true", help="only write it")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run it; returns the exit status."""
    path = write_page(
        args.paths,
        args.output or page_path(args.paths[0]),
        where=args.where,
        without=tuple(filter(None, args.without.split(","))),
        tokenizer=args.tokenizer,
    )
    sys.stdout.write(f"{path}\n")
    if not args.no_open:
        open_page(path)
    return 0


def page_path(records: Path) -> Path:
    """Where the page of records goes: beside them."""
    return records.with_name(f"{records.name.removesuffix('.jsonl')}.html")


def write_page(
    paths: list[Path],
    output: Path,
    *,
    where: str = "",
    without: tuple[str, ...] = (),
    tokenizer: str | None = None,
) -> Path:
    """Write the page and say on stderr what is in it; returns its path."""
    from abut.records.viewer.page import view

    page = view(paths, where=where, without=without, tokenizer=tokenizer)
    path = page.save(output)
    megabytes = path.stat().st_size / 1e6
    sys.stderr.write(f"abut view: {page.rollouts} rollouts, {megabytes:.1f} MB\n")
    for trouble in page.troubles:
        sys.stderr.write(printable(f"abut view: without its tokenizer: {trouble}\n"))
    return path


def open_page(path: Path) -> None:
    """Open it in the browser that there is, if there is one."""
    import webbrowser

    if not _has_screen() or not webbrowser.open(path.resolve().as_uri()):
        sys.stderr.write("abut view: no browser here: open the file where there is one\n")


def _has_screen() -> bool:
    # Without one `webbrowser` starts a browser of the terminal, where it finds one, and waits.

    if os.environ.get("BROWSER") or sys.platform in ("win32", "darwin"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
