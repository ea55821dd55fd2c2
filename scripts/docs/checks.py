"""Check the built site: every link leads somewhere, and nothing is loaded from outside."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

_LOADS = {
    ("script", "src"),
    ("img", "src"),
    ("source", "src"),
    ("source", "srcset"),
    ("video", "src"),
    ("audio", "src"),
    ("iframe", "src"),
    ("embed", "src"),
    ("object", "data"),
    ("use", "href"),
    ("image", "href"),
}
_LINKS_THAT_LOAD = {"stylesheet", "icon", "preload", "modulepreload", "manifest", "prefetch"}
_LINKS_THAT_LOAD |= {"preconnect", "dns-prefetch", "apple-touch-icon", "mask-icon"}


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[tuple[int, str]] = []
        self.loads: list[tuple[int, str]] = []
        self._style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        line = self.getpos()[0]
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        for name, value in given.items():
            rel = set(given.get("rel", "").split())
            if (tag, name) in _LOADS or (
                tag == "link" and name == "href" and rel & _LINKS_THAT_LOAD
            ):
                self.loads.append((line, value))
            elif tag == "a" and name == "href":
                self.links.append((line, value))
        self._style = tag == "style"
        self.loads += [(line, url) for url in loaded_by_css(given.get("style", ""))]

    def handle_endtag(self, tag: str) -> None:
        self._style = False

    def handle_data(self, data: str) -> None:
        if self._style:
            self.loads += [(self.getpos()[0], url) for url in loaded_by_css(data)]


def loaded_by_css(css: str) -> list[str]:
    """Return the addresses that a style sheet loads."""
    found = re.findall(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)", css)
    return [first or second for first, second in found]


def problems(site: Path, site_url: str) -> list[str]:
    """Return broken links and anchors, and all that a page or style sheet loads from outside.

    Args:
        site: the folder of the built site.
        site_url: the address that it will have.
    """
    pages = {}
    for file in sorted(site.rglob("*.html")):
        page = _Page()
        page.feed(file.read_text(encoding="utf-8"))
        pages[file.relative_to(site).as_posix()] = page
    found = []
    for name, page in pages.items():
        for line, url in page.loads:
            if why := _not_inside(site, site_url, name, url):
                found.append(f"{name}:{line}: loads {url}, {why}")
        for line, url in page.links:
            target, anchor = _target(site_url, name, url)
            if target is None:
                continue
            file = target + "index.html" if not target or target.endswith("/") else target
            if not (site / file).is_file():
                found.append(f"{name}:{line}: {url} does not exist")
            elif anchor and file in pages and anchor not in pages[file].anchors:
                found.append(f"{name}:{line}: {url}: {file} has no anchor of that name")
    for file in sorted(site.rglob("*.css")):
        name = file.relative_to(site).as_posix()
        for url in loaded_by_css(file.read_text(encoding="utf-8")):
            if why := _not_inside(site, site_url, name, url):
                found.append(f"{name}: loads {url}, {why}")
    return found


def _not_inside(site: Path, site_url: str, name: str, url: str) -> str | None:
    """Return why a page may not load an address, or None for a file of the site."""
    if url.startswith(("data:", "#")):
        return None
    target, _ = _target(site_url, name, url)
    if target is None:
        return "which is not in the site"
    return None if (site / target).is_file() else "which does not exist"


def _target(site_url: str, name: str, url: str) -> tuple[str | None, str]:
    """Return the path below the site that an address on a page leads to, and its anchor.

    The path is None for an address outside.
    """
    address, anchor = urldefrag(urljoin(site_url + name, url))
    if not address.startswith(site_url):
        return None, anchor
    return unquote(urlsplit(address).path.removeprefix(urlsplit(site_url).path)), unquote(anchor)
