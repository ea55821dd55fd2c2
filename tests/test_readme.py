"""The README does what it says: its Python runs, and its output is what it shows."""

import contextlib
import gc
import io
import json
import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest

import abut
from abut.envs.guarded import check_reply, make_env
from abut.envs.signatures import check_env_factory
from abut.records.read import read_records
from tests.kit.stage.agents import play_agents

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
TRL, ENVIRONMENT, AGENT, BY_HAND = [block for language, block in BLOCKS if language == "python"]


def test_the_block_by_hand_ends_in_an_assert_and_prints_what_is_shown() -> None:
    lines = [line for line in BY_HAND.splitlines() if line]
    assert len(lines) <= 12
    assert lines[-1].startswith("assert ")
    shown = next(block for language, block in BLOCKS if language == "text")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(BY_HAND, "README.md", "exec"), {})
    assert printed.getvalue() == shown
    assert "exact=False" in shown


def test_the_assert_of_the_block_by_hand_can_fail() -> None:
    broken = BY_HAND.replace("[*request, *sampled]", "[*request, *seam.canonical_ids]")
    assert broken != BY_HAND
    with pytest.raises(AssertionError), contextlib.redirect_stdout(io.StringIO()):
        exec(compile(broken, "README.md", "exec"), {})


def test_the_environment_is_one() -> None:
    variables: dict[str, Any] = {}
    exec(compile(ENVIRONMENT, "README.md", "exec"), variables)
    env = make_env(check_env_factory(variables["SayYes"]))
    env, _ = check_reply(env, "reset", env.reset("seed"))
    assert check_reply(env, "step", env.step("yes")) == (env, "")
    assert (env.reward, env.alive) == (1.0, False)


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # six lines, and none closes
def test_the_agent_is_one(stage: Any) -> None:
    openai = pytest.importorskip("openai")
    assert len(AGENT.splitlines()) == 6
    variables: dict[str, Any] = {"abut": abut, "openai": openai}
    exec(compile(AGENT, "README.md", "exec"), variables)
    rows = [{"question": "Say yes.", "answer": answer} for answer in ("yes", "no")]
    solve = variables["solve"]
    played = play_agents(stage, solve, solve, columns=rows)
    assert [rollout.reward for rollout in played.rollouts] == [1.0, 0.0]
    del played
    gc.collect()


def test_the_trl_block_trains(
    tiny_model: Any, hf_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl")
    tiny_model().save_pretrained(tmp_path / "model")
    hf_tokenizer.save_pretrained(tmp_path / "model")

    # The same lines, with a model that is here, for one step. It never ends a turn by itself.
    code = TRL
    settings = f'GRPOConfig("{tmp_path}/out", max_steps=1, use_cpu=True, bf16=False, '
    settings += 'report_to="none", save_strategy="no", disable_tqdm=True'
    for shown, here in {
        '"Qwen/Qwen3-0.6B"': f'"{tmp_path}/model"',
        'GRPOConfig("out"': settings,
        "max_completion_length=2048": "max_completion_length=64",
    }.items():
        assert code.count(shown) == 1
        code = code.replace(shown, here)
    variables: dict[str, object] = {}
    monkeypatch.chdir(tmp_path)  # it records its rollouts
    exec(compile(code, "README.md", "exec"), variables)
    rollouts = list(read_records(tmp_path / "rollouts.jsonl"))
    assert [rollout["error"] for rollout in rollouts] == [None] * 8
    assert all(sum(rollout["env_mask"]) > 0 for rollout in rollouts)
    logs = variables["trainer"].state.log_history  # type: ignore[attr-defined]
    assert logs[0]["rollout/turns/mean"] >= 1


def test_the_first_screen_is_forty_lines() -> None:
    screen = README.splitlines()[:40]
    pictures = [k for k, line in enumerate(screen) if line.startswith("![")]
    code = screen.index("```python")
    table = next(k for k, line in enumerate(screen) if line.startswith("|---"))
    assert pictures[0] < code < table, "what goes wrong, what to write, what it gains"
    assert any("pip install" in line for line in screen)


FIGURES = [
    # The row of the table, and for each of its figures the benchmark's row, case and side.
    ("play 128 rollouts", "pace", "replies as tool messages, calls parsed", "abut"),
    ("play 128 rollouts", "pace", "replies as tool messages, calls parsed", "TRL _tool_call_loop"),
    ("play 128 rollouts", "pace", "replies as user turns", "trl-env rollout_func"),
    ("assemble 512 rollouts", "rollouts", "replies as tool messages, calls parsed", "abut"),
    (
        "assemble 512 rollouts",
        "rollouts",
        "replies as tool messages, calls parsed",
        "TRL _tool_call_loop",
    ),
    ("append a reply", "append", "to 120,000 tokens", "abut"),
    ("append a reply", "append", "to 120,000 tokens", "TRL _get_tool_suffix_ids"),
    ("append a reply", "append", "to 120,000 tokens", "apply_chat_template"),
    ("encode 1 MB", "encode", "a text seen for the first time", "abut"),
    ("encode 1 MB", "encode", "a text seen for the first time", "tokenizers encode"),
    ("encode 1 MB", "encode", "a text seen for the first time", "gigatoken encode"),
    ("`is_additive`", "seam", "behind 1,000,000 bytes", "abut is_additive()"),
    ("`is_additive`", "seam", "behind 1,000,000 bytes", "tokenizers, both and their join"),
    ("a vLLM reply", "engine_reply", "a reply", "abut"),
    ("a vLLM reply", "engine_reply", "a reply", "json.loads and Python loops"),
]


def test_the_table_has_the_figures_of_the_benchmark() -> None:
    measured = json.loads(
        (ROOT / "docs" / "background" / "performance.json").read_text(encoding="utf-8")
    )
    medians = {
        (row["name"], figure["case"], figure["side"]): figure["median"]
        for row in measured["rows"]
        for figure in row["figures"]
    }
    expected: dict[str, list[float]] = {}
    times: dict[str, list[int]] = {}
    for begins, row, case, side in FIGURES:
        seconds = medians[row, case, side]
        expected.setdefault(begins, []).append(seconds)
        if not side.startswith("abut") and (ours := medians.get((row, case, "abut"))) is not None:
            times.setdefault(begins, []).append(round(seconds / ours))
    for begins, seconds_of_row in expected.items():
        (line,) = [line for line in README.splitlines() if line.startswith(f"| {begins}")]
        told = re.findall(r"([\d.]+) (ms|s)\b", line.split(" | ", 1)[1])
        shown = [float(number) * {"ms": 1e-3, "s": 1.0}[unit] for number, unit in told]
        assert shown == pytest.approx(seconds_of_row, rel=0.06), line
        said = [int(number) for number in re.findall(r"(\d+) times", line)]
        assert not said or said == times[begins], line


def test_the_links_lead_somewhere_on_the_package_index_too() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    files = project["urls"]["Repository"] + "/blob/main/"
    assert not re.findall(r"\]\((?!https://)", README), "there, a path leads nowhere"
    links = dict(re.findall(r"^\[([^\]]+)\]: (.*)$", README, flags=re.MULTILINE))
    raw = files.replace("github.com", "raw.githubusercontent.com").replace("/blob/", "/")
    for picture in re.findall(r"^!\[[^\]]+\]\[(\w+)\]$", README, flags=re.MULTILINE):
        link = links.pop(picture)
        assert link.startswith(raw)
        assert (ROOT / link.removeprefix(raw)).exists()
    used = set(re.findall(r"\[([\w/.-]+\.(?:md|py))\]", README))
    assert used == set(links)
    for name, link in links.items():
        assert link == files + name
        assert (ROOT / name).exists()


def test_every_file_and_make_target_that_the_documents_name_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^(\w+):", makefile, flags=re.MULTILINE))
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    for document in documents:
        text = document.read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (document.parent / link).exists(), f"{document.name}: {link}"
        named = set(re.findall(r"`make (\w+)`", text))
        assert named <= targets, f"{document.name}: {named - targets}"


PAGES = sorted(page for page in (ROOT / "docs").glob("*/*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_begins_with_what_it_is_for(page: Path) -> None:
    title, blank, first = page.read_text(encoding="utf-8").splitlines()[:3]
    assert title.startswith("# ")
    assert not blank
    assert re.match(r"\[?\w|`(?!``)", first), "words, and no code, table or picture"


def test_the_picture_is_what_the_tokenizer_does() -> None:
    drawn = runpy.run_path(str(ROOT / "scripts" / "draw_why.py"))["picture"]()
    assert drawn == (ROOT / "docs" / "background" / "why.svg").read_text(encoding="utf-8")
