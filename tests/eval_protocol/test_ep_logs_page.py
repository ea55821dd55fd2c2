"""`ep logs`, really started, its page opened in a real browser: what training logged is there."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("eval_protocol")
pytest.importorskip("playwright")

from eval_protocol.dataset_logger.sqlite_dataset_logger_adapter import SqliteDatasetLoggerAdapter
from eval_protocol.models import EvaluateResult, EvaluationRow, Message, MetricResult
from eval_protocol.pytest import evaluation_test
from playwright.sync_api import Page

from abut.eval_protocol import eval_test
from tests.kit.servers.free_port import free_port
from tests.kit.stage.evals import play_test
from tests.kit.stage.rollouts import Stage


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, stage: Stage) -> Path:
    """A home with a store that two steps of training have written."""
    home = tmp_path_factory.mktemp("ep-logs")
    (home / ".eval_protocol").mkdir()
    to = SqliteDatasetLoggerAdapter(db_path=str(home / ".eval_protocol" / "logs.db"))

    @evaluation_test(
        input_messages=[[[Message(role="user", content="Say a number.")]]],
        completion_params=[{"model": "openai/m"}],
        logger=to,
        disable_browser_open=True,
    )
    def test_shown(row: EvaluationRow) -> EvaluationRow:
        """A metric of 2.0 would blank the page."""
        metrics = {"large": MetricResult(score=2.0, reason="out of what the page takes")}
        row.evaluation_result = EvaluateResult(score=0.75, reason="shown", metrics=metrics)
        return row

    for step in (7, 8):
        test = eval_test(test_shown, name="shown-in-training")
        says = f"It is {step}."
        play_test(stage, test, lambda text, says=says: says, step=step, prefix=f"s{step}-")
        test._log.wait()
    assert len(to._store.read_rows()) == 4
    return home


@pytest.fixture(scope="module")
def url(store: Path) -> Iterator[str]:
    """`ep logs` on that store; its command takes any text for a key."""
    port = free_port()
    environ = {
        **os.environ,
        "HOME": str(store),
        "FIREWORKS_API_KEY": "any",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    command = [str(Path(sys.executable).with_name("ep")), "logs", "--port", str(port)]
    log = (store / "ep.log").open("wb")
    server = subprocess.Popen(command, env=environ, cwd=store, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api/status", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None, (store / "ep.log").read_text()
                assert time.monotonic() < deadline, (store / "ep.log").read_text()
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


@pytest.fixture(scope="module")
def page(url: str, chromium: Any) -> Iterator[Page]:
    page = chromium.new_page(viewport={"width": 1700, "height": 1000})
    page.goto(f"{url}/table")
    page.get_by_text("shown-in-training").first.wait_for(timeout=60_000)
    yield page
    page.close()


def test_all_rollouts_are_shown_with_name_status_and_score(page: Page) -> None:
    text = page.inner_text("body")
    assert "Showing all 4 rows" in text
    assert text.count("shown-in-training") == 4
    assert text.count("0.750") == 4
    assert text.count("finished") == 8  # evaluation and rollout
    assert "running" not in text


def test_token_debug_shows_turns_mask_and_logprobs(page: Page, tmp_path_factory: Any) -> None:
    page.get_by_role("button", name="Expand All").click()
    page.get_by_text("Token Debug").first.wait_for(timeout=60_000)
    text = page.inner_text("body")
    assert "Text + Mask (1 turns)" in text
    assert "reward: 0.75" in text
    folder = Path(os.environ.get("ABUT_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    page.screenshot(path=folder / "ep_logs.png")
    page.get_by_role("button", name="logprobs").first.click()
    page.screenshot(path=folder / "ep_logs_logprobs.png")
    assert (folder / "ep_logs.png").stat().st_size > 20_000


def test_rows_are_filtered_by_step(page: Page, url: str) -> None:
    wanted = {
        "field": "$.execution_metadata.run_id",
        "operator": "==",
        "value": "step-000008",
        "type": "text",
    }
    group = [{"logic": "AND", "filters": [wanted]}]
    page.goto(f"{url}/table?filterConfig={quote(json.dumps(group))}")
    page.get_by_text("Showing 2 of 4 rows").wait_for(timeout=60_000)
