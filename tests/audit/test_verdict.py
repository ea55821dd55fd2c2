"""`abut check`: what it finds is what is there, and what is wrong on purpose is found."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import abut
from abut.audit.fuzz import fuzz_conversations
from abut.audit.printed import lines
from abut.audit.replay import Replay
from abut.audit.seam_verdicts import judge_seams
from abut.audit.verdict import audit
from abut.template.processor import ChatTemplateProcessor
from abut.template.rendering import Rendering
from tests.kit.checkout import DEMO_ASSETS
from tests.kit.data.tokenizers_made import Broken, template, with_close

TRIMS = "{% for m in messages %}<|im_start|>{{ m.content | trim }}<|im_end|>{% endfor %}"


@pytest.fixture
def made(tmp_path: Path) -> Any:
    """Writes a tokenizer.json with other flags on `<|im_end|>`; returns its path."""

    def write(**flags: Any) -> Path:
        path = tmp_path / "tokenizer.json"
        path.write_text(with_close(**flags), encoding="utf-8")
        return path

    return write


def seams(found: Any) -> dict[str, Any]:
    return {f"{seam.left} | {seam.right}": seam for seam in found.seams}


# --- seams


def test_a_hard_stop_token_makes_every_deciding_seam_exact_for_every_text() -> None:
    found = audit(DEMO_ASSETS)
    assert found.exact
    for name in (
        "sampled <|im_end|> | next user",
        "sampled <|im_end|> | next tool",
        "sampled <|im_end|> | next several tools",
        "cut sample | <|im_end|>",
    ):
        seam = seams(found)[name]
        assert (seam.decides, seam.kind, seam.exact, seam.proved) == (True, "barrier", True, True)


def test_the_generation_prompt_is_reported_and_decides_nothing(qwen3: Any) -> None:
    found = audit(qwen3)
    seam = seams(found)["generation prompt | sample"]
    assert (seam.decides, seam.kind, seam.exact) == (False, "merged", False)
    first = seam.breaks[0]
    assert (first.left, first.right, first.canonical) == (("\n",), ("\n",), ("\n\n",))
    assert (first.left_ids, first.right_ids, first.canonical_ids) == ((198,), (198,), (271,))
    assert found.exact


def test_a_stop_token_that_eats_what_follows_is_not_exact(made: Any) -> None:
    found = audit(made(rstrip=True), template=template())
    seam = seams(found)["sampled <|im_end|> | next user"]
    assert (seam.kind, seam.exact, seam.broken) == ("merged", False, seam.tried)
    (one,) = seam.breaks
    assert (one.left, one.right, one.canonical) == (("<|im_end|>",), ("\n",), ("<|im_end|>",))
    assert not found.exact
    assert found.problems[0] == (
        f"sampled <|im_end|> | next user: not exact in {seam.tried} of {seam.tried}"
    )


def test_a_close_that_a_cut_sample_would_undo_is_not_exact(made: Any) -> None:
    found = audit(made(single_word=True), template=template())
    seam = seams(found)["cut sample | <|im_end|>"]
    assert not seam.exact
    assert 0 < seam.broken < seam.tried
    assert "'a' | '<|im_end|>'" in "\n".join(lines(found))


def test_a_soft_stop_token_is_judged_by_the_texts_that_were_tried(made: Any) -> None:
    found = audit(made(normalized=True), template=template())
    seam = seams(found)["sampled <|im_end|> | next user"]
    assert seam.exact
    assert not seam.proved
    assert f"yes, for all {seam.tried} texts tried" in "\n".join(lines(found))
    inside = seams(found)["sample cut inside a character | <|im_end|>"]
    assert (inside.decides, inside.exact) == (False, False)
    assert inside.breaks[0].canonical == ()
    assert found.exact


def test_another_stop_token_is_judged_before_the_close(tmp_path: Path) -> None:
    for file in DEMO_ASSETS.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    end = abut.Tokenizer.from_file(tmp_path / "tokenizer.json").token_to_id("<|endoftext|>")
    config = tmp_path / "generation_config.json"
    for eos in (end, [end]):
        config.write_text(json.dumps({"eos_token_id": eos}))
        assert seams(audit(tmp_path))["sampled <|endoftext|> | <|im_end|>"].proved
    config.write_text("{}")
    assert "sampled <|endoftext|> | <|im_end|>" not in seams(audit(tmp_path))


def test_a_sample_cut_inside_thinking_is_judged_before_what_the_engine_writes(
    hf_tokenizer: Any,
) -> None:
    close = ChatTemplateProcessor(hf_tokenizer).thinking.between + "<|im_end|>"
    seam = seams(audit(hf_tokenizer))[f"sample cut inside thinking | {close!r}"]
    assert (seam.decides, seam.exact, seam.kind) == (False, False, "merged")
    assert ("\n",) in {one.right for one in seam.breaks}


def test_where_the_prompt_opens_the_thinking_every_cut_sample_is_inside_it(
    hf_tokenizer: Any,
) -> None:
    opens = template() + "{% if add_generation_prompt %}<think>\n{% endif %}"
    found = audit(hf_tokenizer, template=opens)
    assert found.template is not None
    assert found.template.generation_prompt.endswith("<think>\n")
    names = seams(found)
    assert names["cut sample | <|im_end|>"].proved
    assert names["sample cut inside thinking | '\\n</think>\\n\\n<|im_end|>'"].tried > 60


def test_a_processor_that_cannot_close_thinking_has_no_such_seam(hf_tokenizer: Any) -> None:
    class Unthinking(ChatTemplateProcessor):
        close_thinking = None  # type: ignore[assignment]

    processor = Unthinking(hf_tokenizer)
    tokenizer = abut.Tokenizer.from_pretrained(hf_tokenizer)
    judged = judge_seams(tokenizer, processor, Rendering(hf_tokenizer, {}), roles=["user"])
    assert not [seam.left for seam in judged if "thinking" in seam.left]


# --- templates


def test_a_template_that_takes_no_tool_messages_is_not_at_fault() -> None:
    no_tools = "{% if messages[-1].role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    found = audit(DEMO_ASSETS, template=no_tools + template())
    seam = seams(found)["a turn | next tool"]
    assert seam.exact is None
    assert not seam.refused
    assert seam.reason
    assert found.exact
    assert "no such seam" in "\n".join(lines(found))


def test_a_message_that_cannot_be_appended_is_named_unless_nobody_says_it() -> None:
    # Where a tool spoke before, a tool message is written otherwise.
    counts = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% if m.role == 'tool' %}{{ messages | selectattr('role', 'equalto', 'tool') | list "
        "| length }}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    found = audit(DEMO_ASSETS, template=counts)
    assert seams(found)["a turn | next tool"].refused
    assert found.problems == ["a turn | next tool: cannot be appended"]
    assert audit(DEMO_ASSETS, template=counts, roles=["user"]).exact


def test_a_call_that_is_written_otherwise_later_is_refused_and_not_overlooked() -> None:
    """As DeepSeek's: a tool's message needs a call before it, and depends on the history."""
    pytest.importorskip("trl", reason="TRL, which ships the templates, is not installed")
    from tests.kit.data.public_templates import TEMPLATES, tokenizer_of

    found = audit(tokenizer_of("deepseekv3", TEMPLATES["deepseekv3"]))
    assert found.problems == ["a turn | next tool: cannot be appended"]
    together = seams(found)["a turn | next several tools"]
    assert (together.decides, together.refused) == (False, False)


def test_a_refused_template_is_reported_with_its_reason_and_the_tokenizer() -> None:
    found = audit(DEMO_ASSETS, template="{{ messages | length }}", fuzz=3)
    assert not found.exact
    assert found.problems == ["abut cannot append to the template"]
    page = "\n".join(lines(found))
    assert "template: REFUSED\n  the template writes the answer of message 1" in page
    assert page.splitlines()[-1] == (
        "Not safe to train with: abut cannot append to this chat template, for the reason above."
    )
    assert "hard         9  text around them cannot change their tokens" in page


@pytest.mark.parametrize(
    "name", ["cohere", "gemma3", "glm4moe", "gptoss", "idefics3", "inst_llama2", "inst_mistral_v3"]
)
def test_templates_of_other_families_are_exact(name: str) -> None:
    pytest.importorskip("trl", reason="TRL, which ships the templates, is not installed")
    from tests.kit.data.public_templates import TEMPLATES, tokenizer_of

    found = audit(tokenizer_of(name, TEMPLATES[name]), fuzz=15)
    assert found.problems == []
    assert found.fuzz is not None
    assert found.fuzz.skipped == 0


def test_a_turn_can_end_on_what_opens_the_next() -> None:
    """As GLM's turns do: each kind of message has a stop token and a close of its own."""
    pytest.importorskip("trl", reason="TRL, which ships the templates, is not installed")
    from tests.kit.data.public_templates import TEMPLATES, tokenizer_of

    names = seams(audit(tokenizer_of("glm4moe", TEMPLATES["glm4moe"])))
    assert {
        "sampled <|user|> | next user",
        "sampled <|observation|> | next tool",
        "sampled <|observation|> | <|user|>",
        "cut sample | <|user|>",
        "cut sample | <|observation|>",
    } <= set(names)


def test_variables_reach_the_template(qwen3: Any) -> None:
    report = audit(qwen3, template_kwargs={"enable_thinking": False}).template
    assert report is not None
    assert report.generation_prompt.endswith("<think>\n\n</think>\n\n")


def test_a_tokenizer_alone_is_profiled_and_said_to_be_alone() -> None:
    found = audit(DEMO_ASSETS / "tokenizer.json")
    assert (found.template, found.seams, found.content) == (None, (), None)
    assert found.problems == ["no seam was judged, because there is no chat template"]
    page = list(lines(found))
    assert "template: none, so there are no seams to judge" in page
    assert page[-4:] == [
        "result: NOT JUDGED",
        "  the tokenizer can be used, but it has no chat template, so there are no seams",
        "  hint: name a folder that has a chat template, or pass one with --template",
        "Without a chat template, abut cannot say whether it is safe to train with.",
    ]
    with pytest.raises(abut.TemplateError) as raised:
        audit(DEMO_ASSETS / "tokenizer.json", fuzz=1)
    assert str(raised.value) == (
        f"{DEMO_ASSETS / 'tokenizer.json'} has no chat template, so there are no conversations "
        "to compare\nhint: pass a template, or leave fuzz out"
    )


def test_a_template_without_transformers_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert audit(DEMO_ASSETS / "tokenizer.json").profile["vocab_size"] == 512
    with pytest.raises(abut.errors.MissingExtraError) as raised:
        audit(DEMO_ASSETS / "tokenizer.json", template=template())
    assert str(raised.value) == (
        "a transformers tokenizer needs transformers: pip install 'abut[hf]'\nhint: a "
        "tokenizer.json alone, without a template, can be checked without transformers"
    )


@pytest.mark.parametrize("roles", [[], ["usr"], ["user", "assistant"], "user"])
def test_roles_that_no_environment_speaks_in_are_refused(roles: Any) -> None:
    with pytest.raises(ValueError, match="roles") as raised:
        audit(DEMO_ASSETS, roles=roles)
    assert str(raised.value) == (
        f'roles={roles!r}: expected roles of an environment\'s messages\nhint: pass ["user"], '
        '["tool"] or both'
    )


def test_a_fuzz_of_fewer_than_no_conversations_is_refused() -> None:
    with pytest.raises(ValueError, match="fuzz") as raised:
        audit(DEMO_ASSETS, fuzz=-3)
    assert str(raised.value) == (
        "fuzz=-3: expected a number of conversations\nhint: pass 0 to leave fuzz out"
    )


# --- contents


def test_contents_are_safe_where_the_render_is_not() -> None:
    content = audit(DEMO_ASSETS).content
    assert content is not None
    assert content.safe
    assert content.render_mints == 9  # all of them


def test_a_content_that_becomes_a_control_token_would_be_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("abut.audit.verdict.Content", type("Minting", (abut.Scaffold,), {}))
    monkeypatch.setattr("abut.template.mask.Content", abut.audit.verdict.Content)
    found = audit(DEMO_ASSETS)
    assert "<tool_call>" in found.content.minted
    assert not found.exact
    assert "content: NOT SAFE" in "\n".join(lines(found))


# --- the fuzz


def replay_of(hf_tokenizer: Any, processor: Any = None) -> Replay:
    native = abut.Tokenizer.from_file(DEMO_ASSETS / "tokenizer.json")
    return Replay(hf_tokenizer, native, processor or ChatTemplateProcessor(hf_tokenizer))


def test_random_conversations_are_those_of_the_full_render(hf_tokenizer: Any) -> None:
    found = fuzz_conversations(
        replay_of(hf_tokenizer), 300, seed=7, roles=["user", "tool", "system"]
    )
    assert found.failure is None
    assert found.against_render + found.against_sent + found.against_parts == 300
    assert found.against_render > 150
    assert found.against_parts > 10
    assert found.merged > 0


def test_thinking_that_is_stripped_is_kept_as_it_was_sent(qwen3: Any) -> None:
    found = audit(qwen3, fuzz=60).fuzz
    assert found is not None
    assert found.failure is None
    assert found.rewritten > 10
    assert found.against_render + found.against_sent + found.against_parts == 60
    assert 0 < found.against_sent <= found.rewritten
    assert found.against_render > 20


def test_a_comparison_with_the_full_render_is_counted_only_where_there_is_one(
    hf_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []
    render = Replay._ids_of_render
    monkeypatch.setattr(Replay, "_ids_of_render", lambda *a: compared.append(1) or render(*a))
    spaced = template().replace("message.content or ''", "' ' + message.content")
    assert spaced != template()
    # As Mistral's: a space before every past answer, which no prompt has.
    for text, all_sent in ((None, False), (spaced, True)):
        compared.clear()
        processor = ChatTemplateProcessor(hf_tokenizer, chat_template=text)
        native = abut.Tokenizer.from_file(DEMO_ASSETS / "tokenizer.json")
        replay = Replay(hf_tokenizer, native, processor, chat_template=text)
        found = fuzz_conversations(replay, 40)
        assert found.failure is None
        assert found.against_render == len(compared)
        assert (found.against_render == 0) == all_sent
        assert found.rewritten == (40 if all_sent else 0)


def test_a_cut_inside_thinking_is_drawn_and_closed_as_the_engine_does(
    qwen3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    close = ChatTemplateProcessor.close_thinking

    def spied(self: Any, completion: str) -> Any:
        closed.append(close(self, completion))
        return closed[-1]

    monkeypatch.setattr(ChatTemplateProcessor, "close_thinking", spied)
    processor = ChatTemplateProcessor(qwen3)
    replay = Replay(qwen3, abut.Tokenizer.from_pretrained(qwen3), processor)
    found = fuzz_conversations(replay, 60)
    assert found.failure is None
    assert [abut.Scaffold("\n</think>\n\n")] in closed
    assert [] in closed


def test_a_seed_gives_the_same_conversations_again(hf_tokenizer: Any) -> None:
    replay = replay_of(hf_tokenizer)
    assert fuzz_conversations(replay, 20, seed=1) == fuzz_conversations(replay, 20, seed=1)
    spoiled = replay_of(spoiled_at_e(hf_tokenizer))
    failures = [fuzz_conversations(spoiled, n, seed=1).failure for n in (100, 200)]
    assert failures[0] == failures[1] is not None


def spoiled_at_e(hf_tokenizer: Any) -> Broken:
    return Broken(hf_tokenizer, lambda text, ids: ids[:-1] if "É" in text else ids)


def test_the_first_failure_is_made_small(hf_tokenizer: Any) -> None:
    found = fuzz_conversations(replay_of(spoiled_at_e(hf_tokenizer)), 200)
    assert found.failure is not None
    assert sum(len(message["content"]) for message in found.failure.messages) <= 3
    assert any("É" in message["content"] for message in found.failure.messages)
    assert "token" in found.failure.problem


def test_a_processor_that_loses_the_separator_is_caught(hf_tokenizer: Any) -> None:
    class Forgets(ChatTemplateProcessor):
        def increment(self, messages: Any) -> Any:
            first, *rest = super().increment(messages)
            return [abut.Scaffold(first.removeprefix("\n")), *rest]

    found = fuzz_conversations(replay_of(hf_tokenizer, Forgets(hf_tokenizer)), 5)
    assert found.failure is not None
    assert found.failure.problem.startswith(
        "turn 0: the template writes other text after the answer: "
    )


def test_a_trajectory_that_joins_ids_naively_is_caught(
    hf_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Naive:
        def __init__(self, tokenizer: Any) -> None:
            self._tokenizer, self._inner = tokenizer, abut.Trajectory(tokenizer)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def __len__(self) -> int:
            return len(self._inner)

        def append_parts(self, parts: Any, **options: Any) -> Any:
            for part in parts:
                self._inner.append_parts([part], **options)
                seam = self._inner.append_sampled(*self._nothing())
            return seam

        def _nothing(self) -> Any:
            self._inner.request()  # freezes every part for itself
            return [], []

    monkeypatch.setattr("abut.rollout.conversation.Trajectory", Naive)
    found = fuzz_conversations(replay_of(hf_tokenizer), 50)
    assert found.failure is not None
    assert "differs\n  turn by turn" in found.failure.problem


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"rstrip": True}, ": the seam before the next messages is Seam("),
        ({"single_word": True}, ": the seam before the close of a cut sample is Seam("),
    ],
)
def test_a_seam_that_is_not_exact_is_caught(made: Any, flags: Any, problem: str) -> None:
    found = audit(made(**flags), template=template(), fuzz=60).fuzz
    assert found is not None
    assert found.failure is not None
    assert problem in found.failure.problem


def test_a_verdict_that_is_not_true_is_caught(
    hf_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Doubts:
        def __init__(self, tokenizer: Any) -> None:
            self._inner = abut.Trajectory(tokenizer)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def __len__(self) -> int:
            return len(self._inner)

        def append_sampled(self, ids: Any, logprobs: Any) -> Any:
            self._inner.append_sampled(ids, logprobs)
            return SimpleNamespace(kind="window", exact=False)

    monkeypatch.setattr("abut.rollout.conversation.Trajectory", Doubts)
    found = fuzz_conversations(replay_of(hf_tokenizer), 5)
    assert found.failure is not None
    assert found.failure.problem.startswith(
        "turn 0: the sample is canonical, but the seam before it is namespace(kind='window', "
        "exact=False)"
    )


def test_conversations_that_are_all_refused_are_no_proof(hf_tokenizer: Any) -> None:
    class Refuses(ChatTemplateProcessor):
        def opening(self, messages: Any) -> Any:
            if messages[0]["content"] == "abutUser":
                return super().opening(messages)
            raise abut.TemplateError("no")

    found = fuzz_conversations(replay_of(hf_tokenizer, Refuses(hf_tokenizer)), 2)
    assert (found.skipped, found.refusal, found.failure) == (2, "no", None)


def test_contents_that_a_template_trims_are_drawn_again() -> None:
    found = audit(DEMO_ASSETS, template=TRIMS, fuzz=40).fuzz
    assert found is not None
    assert found.failure is None
    assert found.skipped == 0
    assert found.against_sent + found.against_parts == 40


# --- the page


def test_the_page_is_text_that_a_terminal_shows(qwen3: Any) -> None:
    page = list(lines(audit(qwen3, fuzz=5)))
    assert all(line.isprintable() for line in page)
    assert "      canonical  '\\n\\n'   (271)" in page
    assert "fuzz: 5 of 5 conversations are the same, seed 0" in page
    assert page[-2:] == [
        "result: exact at every seam that is judged",
        "This tokenizer and chat template are safe to train with.",
    ]
    decided = next(k for k, line in enumerate(page) if line.startswith("seams next to a sample"))
    assert any("merged" in line and "would get other tokens" in line for line in page[decided:])
    assert not any("merged" in line for line in page[:decided])


def test_everything_is_json(made: Any) -> None:
    found = audit(made(rstrip=True), template=template(), fuzz=3)
    values = json.loads(json.dumps(found.as_dict()))
    assert values["exact"] is False
    assert values["seams"][0]["breaks"][0]["canonical"] == ["<|im_end|>"]
    assert values["fuzz"]["failure"]["messages"]
    assert values["content"]["safe"] is True


def test_a_check_takes_a_few_hundred_short_conversations(
    hf_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth of a second, once the tokenizer is loaded: what it does is counted."""
    render, rendered = hf_tokenizer.apply_chat_template, []

    def counted(*args: Any, **options: Any) -> Any:
        rendered.append(render(*args, **options))
        return rendered[-1]

    monkeypatch.setattr(hf_tokenizer, "apply_chat_template", counted)
    audit(hf_tokenizer)
    assert 0 < len(rendered) < 1000
    assert sum(map(len, rendered)) < 500_000
