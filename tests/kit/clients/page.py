"""A page of abut in a browser, as tests use it: what is asked of it, and what it must not do."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class Shown:
    """A page of abut in the browser."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._heard)

    def measure(self) -> None:
        """Count the processor's time from here on."""
        self.session = self.page.context.new_cdp_session(self.page)
        self.session.send("Performance.enable", {"timeDomain": "threadTicks"})

    @property
    def cpu_s(self) -> float:
        """What the page took of the processor: no matter of what else the machine does."""
        metrics = self.session.send("Performance.getMetrics")["metrics"]
        return float(next(m["value"] for m in metrics if m["name"] == "TaskDuration"))

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def open(self, path: Path, address: str = "") -> "Shown":
        """Open a file and wait until it is drawn."""
        self.page.goto(path.resolve().as_uri() + address)
        self.wait("window.ready === true")
        return self

    def wait(self, condition: str, seconds: float = 60) -> None:
        """Wait until an expression is true. The page's policy stops playwright's own way."""
        deadline = time.monotonic() + seconds
        while not self.page.evaluate(condition):
            assert time.monotonic() < deadline, (condition, self.complaints)
            time.sleep(0.01)

    def ask(self, expression: str, argument: Any = None) -> Any:
        return self.page.evaluate(expression, argument)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def unfold(self, details: Any) -> None:
        """Click the first summary in it, and wait for two frames: before, its text is not there."""
        details.locator("summary").first.click()
        frame = "new Promise((drawn) => requestAnimationFrame(drawn))"
        self.page.evaluate(f"{frame}.then(() => {frame})")

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    @property
    def address(self) -> str:
        self.wait("location.hash === app.address")
        return str(self.ask("location.hash"))

    @property
    def title(self) -> str:
        """The rollout that is shown."""
        return self.text("#view-tokens .title code")

    def token(self, number: int) -> Any:
        """The span of a token."""
        block = "#view-tokens .block > span"
        return self.page.locator(block).nth(number)

    def check(self) -> None:
        """It asked for nothing but itself, and complained of nothing."""
        self.ask("0")  # a round trip: what came before has arrived
        assert self.complaints == []
        own = self.page.url.partition("#")[0]
        asked = {url.partition("#")[0] for url in self.requests}
        if own.startswith("http:"):  # one that is watched asks its own server
            assert all(url.startswith(own) for url in asked)
        else:
            assert asked <= {own}

    def axe(self) -> list[str]:
        """The rules of axe-core that it breaks."""
        import axe_playwright_python

        script = Path(axe_playwright_python.__file__).parent / "axe.min.js"
        self.ask(script.read_text(encoding="utf-8"))
        found = self.ask("axe.run(document, {resultTypes: ['violations']})")
        return [rule["id"] for rule in found["violations"]]


def run_copied_test(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run what *Copy as test* gave."""
    file = folder / "test_copied.py"
    file.write_text(text, encoding="ascii")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(file)]
    environment = {**os.environ, "PYTEST_ADDOPTS": ""}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500
    )
