"""The README does what it says: its Python runs, and its output is what it shows."""

import contextlib
import gc
import io
import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest

import abut
from abut.envs.foreign import check_env_factory, check_reply, make_env
from abut.records.read import read_records
from agent_stage import play_agents

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
PYTHON = [block for language, block in BLOCKS if language == "python"]


def test_the_first_block_ends_in_an_assert_and_prints_what_is_shown() -> None:
    lines = [line for line in PYTHON[0].splitlines() if line]
    assert len(lines) <= 12
    assert lines[-1].startswith("assert ")
    shown = next(block for language, block in BLOCKS if language == "text")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(PYTHON[0], "README.md", "exec"), {})
    assert printed.getvalue() == shown
    assert "exact=False" in shown


def test_the_assert_of_the_first_block_can_fail() -> None:
    broken = PYTHON[0].replace("[*request, *sampled]", "[*request, *seam.canonical_ids]")
    assert broken != PYTHON[0]
    with pytest.raises(AssertionError), contextlib.redirect_stdout(io.StringIO()):
        exec(compile(broken, "README.md", "exec"), {})


def test_the_environment_is_one() -> None:
    assert len(PYTHON) == 4
    variables: dict[str, Any] = {}
    exec(compile(PYTHON[2], "README.md", "exec"), variables)
    env = make_env(check_env_factory(variables["SayYes"]))
    env, _ = check_reply(env, "reset", env.reset("seed"))
    assert check_reply(env, "step", env.step("yes")) == (env, "")
    assert (env.reward, env.alive) == (1.0, False)


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # six lines, and none closes
def test_the_agent_is_one(stage: Any) -> None:
    openai = pytest.importorskip("openai")
    assert len(PYTHON[3].splitlines()) == 6
    variables: dict[str, Any] = {"abut": abut, "openai": openai}
    exec(compile(PYTHON[3], "README.md", "exec"), variables)
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
    code = PYTHON[1]
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
    assert sum(line.startswith("```python") for line in screen) == 2
    assert any("pip install" in line for line in screen)


def test_the_links_lead_somewhere_on_the_package_index_too() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    files = project["urls"]["Repository"] + "/blob/main/"
    assert not re.findall(r"\]\((?!https://)", README), "there, a path leads nowhere"
    links = dict(re.findall(r"^\[([^\]]+)\]: (.*)$", README, flags=re.MULTILINE))
    used = set(re.findall(r"\[([\w/.]+\.(?:md|py))\]", README))
    assert used == set(links)
    for name, link in links.items():
        assert link == files + name
        assert (ROOT / name).exists()


def test_every_file_and_make_target_that_the_documents_name_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^(\w+):", makefile, flags=re.MULTILINE))
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    for document in documents:
        text = document.read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (document.parent / link).exists(), f"{document.name}: {link}"
        named = set(re.findall(r"`make (\w+)`", text))
        assert named <= targets, f"{document.name}: {named - targets}"


PAGES = sorted(page for page in (ROOT / "docs").glob("*.md") if page.name != "README.md")


def test_the_map_has_every_page() -> None:
    table = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\) \| \S", table, flags=re.MULTILINE)
    assert all(name == link for name, link in rows)
    assert sorted(name for name, _ in rows) == [page.stem for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_begins_with_what_it_is_for(page: Path) -> None:
    title, blank, first = page.read_text(encoding="utf-8").splitlines()[:3]
    assert title.startswith("# ")
    assert not blank
    assert re.match(r"\w|`(?!``)", first), "words, and no code, table or picture"


def test_the_picture_is_what_the_tokenizer_does() -> None:
    drawn = runpy.run_path(str(ROOT / "scripts" / "draw_why.py"))["picture"]()
    assert drawn == (ROOT / "docs" / "why.svg").read_text(encoding="utf-8")
