"""Rollouts as one HTML file: no server, no network, nothing to install.

Invariant: the content of records reaches the page as data only, compressed and in base64. Markup
and scripts are the files in `assets`, and the page's own policy keeps a browser from running
anything else and from making any request.
"""

import base64
import hashlib
import html
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from abut._native import __version__
from abut.errors import AbutError
from abut.parts import PROVENANCE
from abut.records.export import export
from abut.records.filter import parse_filter
from abut.records.read import Path_, RecordReader, Source, named
from abut.records.show import load_tokenizer
from abut.records.viewer.packed import Chunk, Pieces, add_row, block, row_of_list
from abut.records.viewer.pictures import Pictures

ASSETS = Path(__file__).parent / "assets"
STYLES = ("page.css", "left.css", "tokens.css", "chat.css")
SCRIPTS = (
    *("dom.js", "records.js", "text.js", "filter.js", "runs.js", "facets.js", "list.js"),
    *("tokens.js", "pictures.js", "seams.js", "facts.js", "chat.js", "branches.js", "find.js"),
    *("rollout.js", "compare.js", "curves.js", "copied_test.js", "keys.js", "page.js"),
)
"""In load order."""

WATCHED_SCRIPTS = (*SCRIPTS[:-1], "watch.js", SCRIPTS[-1])
"""Of a page that `abut view --watch` serves; no other page can make a request."""

LARGE_BYTES = 50_000_000
"""Browsers take seconds to open a larger page."""

_CONNECT = "connect-src 'self'; "

_GENERATOR = '<meta name="generator" content="abut view">'
_NEEDED = {"rollout_id", "prompt_ids", "completion_ids", "env_mask", "schema_version"}

Records: TypeAlias = Path_ | Iterable[Path_] | Iterable[Mapping[str, Any]]


class Page:
    """A page of rollouts, as `abut.records.view` makes it; a notebook shows it.

    Attributes:
        html: the whole file.
        rollouts: how many rollouts it shows.
        troubles: for each tokenizer that could not be loaded, why: the page then shows ids; and why
            images are not shown.
    """

    def __init__(self, text: str, rollouts: int, troubles: Sequence[str] = ()) -> None:
        self.html = text
        self.rollouts = rollouts
        self.troubles = troubles

    def save(self, path: Path_) -> Path:
        """Write the file; replace a page that an earlier call wrote.

        Raises:
            FileExistsError: the file exists and is not such a page.
        """
        path = Path(path)
        if path.exists() and not _is_page(path):
            raise FileExistsError(
                f"{path} already exists and is not a page of abut\nhint: name another file"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.html, encoding="utf-8", newline="\n")
        return path

    def __repr__(self) -> str:
        return f"<abut.records.view: {self.rollouts} rollouts, {len(self.html):,} characters>"

    def _repr_html_(self) -> str:
        # Without an origin of its own, the page reaches neither the notebook nor its cookies.
        return (
            '<iframe sandbox="allow-scripts" title="rollouts" '
            'style="width:100%;height:800px;border:1px solid #8888;border-radius:6px" '
            f'srcdoc="{html.escape(self.html)}"></iframe>'
        )


def view(
    records: Records,
    *,
    where: str = "",
    without: Iterable[str] = (),
    tokenizer: str | None = None,
    images: Path_ | None = None,
) -> Page:
    """Return a page that shows each token of rollouts; `docs/how-to/view.md` says how to read it.

    Args:
        records: a file, a folder, several of them, or records as `read_records` yields them.
        where: a filter such as `"reward<0.5 step:100"`; see `abut show`.
        without: fields to leave out of a page that you share: `columns` holds answers,
            `traceback` holds paths.
        tokenizer: name, folder or tokenizer.json; None: the one that each record names. If that
            cannot be loaded, the page shows ids and messages, and says why.
        images: the folder that `record_images` named; the page then holds a thumbnail of each image
            of the rollouts. None: it shows their sizes and hashes.

    Raises:
        ValueError: `where` is not a filter, `without` names an unknown field or one that the page
            needs, or a path holds no records.
        FileNotFoundError: a path does not exist.
        NotADirectoryError: `images` is a file.
        MissingExtraError: Pillow is not installed, which `images` needs.
    """
    return make_page(records, where=where, without=without, tokenizer=tokenizer, images=images)


def make_page(
    records: Records,
    *,
    where: str,
    without: Iterable[str],
    tokenizer: str | None,
    images: Path_ | None,
    on_large: Callable[[float], None] | None = None,
) -> Page:
    """Return the page of `view`.

    Args:
        records: as of `view`, and so are all arguments but the last.
        where: a filter.
        without: fields to leave out.
        tokenizer: None: the one that each record names.
        images: a folder.
        on_large: is called once the page has more than 50 MB, with the size that the whole page
            will have, in bytes, as the part that was read predicts it. It may raise.
    """
    left_out = [*without]
    check_left_out(left_out)
    read, name = _read(records)
    wanted = filter(parse_filter(where), read)
    pictures = Pictures(None if images is None else Path(images))
    shown = export(wanted, "records", without=left_out)
    growth = _Growth(read if isinstance(read, RecordReader) else None, on_large)
    sources = read.sources if isinstance(read, RecordReader) else [Source(Path(), name)]
    return _page(shown, name, where, left_out, tokenizer, pictures, sources, growth)


def check_left_out(without: Iterable[str]) -> None:
    """Raise a ValueError for a field without which there is no page."""
    if needed := sorted(_NEEDED & {*without}):
        raise ValueError(f"a page needs the field {needed[0]!r}\nhint: leave out other fields")


def _read(records: Records) -> tuple[Iterable[Mapping[str, Any]], str]:
    """Return the records, and a name for them."""
    if isinstance(records, str | os.PathLike):
        return RecordReader(records), name_of([records])
    several: Iterator[Any] = iter(records)
    first = next(several, None)
    if first is None:
        return [], "no rollouts"
    everything = chain([first], several)
    if isinstance(first, Mapping):
        return everything, "rollouts"
    paths: Sequence[Path_] = list(everything)
    return RecordReader(paths), name_of(paths)


def name_of(paths: Sequence[Path_]) -> str:
    """Return the title of a page of these records."""
    return ", ".join(named(path).name for path in paths)


def source_names(sources: Sequence[Source]) -> list[str]:
    """Return a name for each source, which is its path where several have the same one."""
    names = Counter(source.name for source in sources)
    return [s.name if names[s.name] == 1 else s.path.as_posix() for s in sources]


class _Growth:
    """Says how large the page will be, once it is large."""

    def __init__(
        self, reading: RecordReader | None, on_large: Callable[[float], None] | None
    ) -> None:
        self._reading = reading
        self._on_large = on_large
        self._bytes = 0

    def add(self, packed: str) -> None:
        self._bytes += len(packed)
        if self._bytes > LARGE_BYTES and self._on_large is not None:
            share = 1.0 if self._reading is None else self._reading.share
            self._on_large(self._bytes / share)
            self._on_large = None


def _page(
    records: Iterable[Mapping[str, Any]],
    name: str,
    where: str,
    without: Sequence[str],
    tokenizer: str | None,
    pictures: Pictures,
    sources: Sequence[Source],
    growth: _Growth,
) -> Page:
    tables: dict[str | None, Pieces] = {}
    rows: dict[str, list[Any]] = {}
    chunks: list[str] = []
    chunk = Chunk()

    def end_chunk() -> None:
        chunks.append(_text(chunk.packed()))
        growth.add(chunks[-1])

    for record in records:
        if chunk.is_full:
            end_chunk()
            chunk = Chunk()
        source = tokenizer or record.get("tokenizer")
        pieces = tables.get(source) or tables.setdefault(source, pieces_of(source, tokenizer))
        found_at = {
            "chunk": len(chunks),
            "place_in_chunk": len(chunk),
            "tokenizer": [*tables].index(source),
            "source": len(sources) - 1,
        }
        add_row(rows, row_of_list(record) | found_at)
        chunk.add(record, pieces)
        pictures.add(record)
    end_chunk()
    thumbnails = [*pictures.packed()]
    head = {
        "version": __version__,
        "name": name,
        "made": round(time.time()),
        "where": where,
        "without": without,
        "provenance": PROVENANCE,
        "chunks": len(chunks),
        "tokenizers": len(tables),
        "pictures": [hashes for hashes, _ in thumbnails],
        "sources": source_names(sources),
        "rollouts": rows,
    }
    blocks = {"head": _text(block(head))}
    for number, pieces in enumerate(tables.values()):
        blocks[f"pieces-{number}"] = _text(block(*pieces.packed()))
    blocks |= {f"chunk-{number}": packed for number, packed in enumerate(chunks)}
    blocks |= {f"pictures-{number}": _text(packed) for number, (_, packed) in enumerate(thumbnails)}
    troubles = [f"tokens have no text: {p.trouble}" for p in tables.values() if p.trouble]
    troubles += pictures.troubles()
    return Page(markup(name, blocks), len(rows.get("rollout_id", ())), troubles)


def pieces_of(source: str | None, asked: str | None) -> Pieces:
    """Return the table of a tokenizer; without texts if the tokenizer cannot be loaded.

    Raises:
        AbutError: the caller named the tokenizer, and it cannot be loaded.
        OSError: the same.
        ValueError: the same.
    """
    if not source:
        return Pieces(None, None, "the records do not name a tokenizer")
    try:
        return Pieces(source, load_tokenizer(source))
    except (AbutError, OSError, ValueError) as error:
        if asked:
            raise
        return Pieces(source, None, str(error))


def policy_of(*, watched: bool = False) -> str:
    """Return what a page may do; one that is watched may also ask its own server."""
    return (
        f"default-src 'none'; script-src {_hashes(_scripts(watched))}; "
        f"style-src {_hashes(map(_asset, STYLES))}; img-src data:; {_CONNECT * watched}"
        "base-uri 'none'; form-action 'none'"
    )


def markup(name: str, blocks: Mapping[str, str], *, watched: bool = False) -> str:
    """Return the file of a page."""
    policy = policy_of(watched=watched)
    filled = {
        "<!-- policy -->": f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        "<!-- generator -->": _GENERATOR,
        "<!-- title -->": f"<title>{html.escape(name)} · abut view</title>",
        "<!-- styles -->": "\n".join(f"<style>{style}</style>" for style in map(_asset, STYLES)),
        "<!-- data -->": "\n".join(
            f'<script type="application/octet-stream" id="{id_}">{data}</script>'
            for id_, data in blocks.items()
        ),
        "<!-- scripts -->": "\n".join(f"<script>{script}</script>" for script in _scripts(watched)),
    }
    text = _asset("page.html")
    for mark, put in filled.items():
        before, found, behind = text.partition(mark)
        assert found, mark
        text = before + put + behind
    return text


def _scripts(watched: bool) -> list[str]:
    files = WATCHED_SCRIPTS if watched else SCRIPTS
    return [f"{_asset(file)}//# sourceURL=abut/{file}\n" for file in files]


def _text(packed: bytes) -> str:
    return base64.b64encode(packed).decode("ascii")


def _asset(file: str) -> str:
    return (ASSETS / file).read_text(encoding="utf-8")


def _hashes(texts: Iterable[str]) -> str:
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def _is_page(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return _GENERATOR.encode() in file.read(4096)
