"""The built site in a browser: it sends no request to other hosts, and its parts work.

`make test-browser` builds the site and runs these tests; elsewhere they are skipped.
"""

import functools
import importlib.util
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.kit.checkout import ROOT

SITE = ROOT / "site"
PAGES = ["", "how-to/tools/", "background/why/", "background/architecture/", "reference/messages/"]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not importlib.util.find_spec("playwright"), reason="make test-browser"),
    pytest.mark.skipif(not (SITE / "index.html").is_file(), reason="make docs builds the site"),
]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(SITE))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def page(chromium: Any, address: str) -> Iterator[Any]:
    """A page that must have asked only the site for anything, without an error in its console."""
    context = chromium.new_context(
        color_scheme="dark", permissions=["clipboard-read", "clipboard-write"]
    )
    made = context.new_page()
    asked: list[str] = []
    complaints: list[str] = []
    made.on("request", lambda request: asked.append(request.url))
    made.on("pageerror", lambda error: complaints.append(str(error)))
    made.on(
        "console", lambda said: said.type in ("error", "warning") and complaints.append(said.text)
    )
    yield made
    made.wait_for_load_state("networkidle")
    assert asked
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
    assert complaints == []
    context.close()


def test_pages_load_everything_from_the_site(page: Any, address: str) -> None:
    for name in PAGES:
        page.goto(address + name)
        page.wait_for_load_state("networkidle")
        assert page.locator("h1").count() == 1
    loaded = page.evaluate(
        "[...document.fonts].filter(f => f.status == 'loaded').map(f => f.family)"
    )
    assert {name.strip('"') for name in loaded} == {"Inter", "JetBrains Mono"}


def test_a_request_elsewhere_would_be_seen(chromium: Any, address: str) -> None:
    page = chromium.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    page.evaluate("fetch('http://127.0.0.1:9/elsewhere').catch(() => 0)")
    assert "http://127.0.0.1:9/elsewhere" in asked
    page.close()


def test_the_search_finds_a_setting_and_leads_to_it(page: Any, address: str) -> None:
    page.goto(address)
    page.locator(".md-search__button").first.click()
    page.keyboard.type("max_failed_frac")
    result = page.locator("a[href*='/reference/settings/?h=max_failed_frac']").first
    result.wait_for()
    result.click()
    page.wait_for_url("**/reference/settings/**max_failed_frac")
    assert page.locator("h3", has_text="max_failed_frac").is_visible()


def test_the_scheme_follows_the_system_and_can_be_chosen(page: Any, address: str) -> None:
    page.goto(address)
    body = page.locator("body")
    assert body.get_attribute("data-md-color-scheme") == "slate"
    page.locator("label[title='Switch to light mode']").click()
    assert body.get_attribute("data-md-color-scheme") == "default"


def test_code_can_be_copied(page: Any, address: str) -> None:
    page.goto(f"{address}how-to/tools/")
    page.locator("button[data-md-type='copy']").first.click()
    code = page.locator("pre code").first.inner_text()
    assert page.evaluate("navigator.clipboard.readText()").strip() == code.strip()
    assert len(code) > 100
