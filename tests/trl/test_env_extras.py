"""What an environment says beside its reward reaches reward functions and metrics of TRL."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

from abut.trl import env_reward, scored_only
from abut.trl.rows.columns import fill_extras
from tests.kit.stage.rollouts import Talk, env
from tests.kit.training.trl_run import Run, a_trainer


class Judged(Talk):
    """Judges the length of an action, in numbers and in words."""

    def step(self, action: str) -> Any:
        self.extras = {"talk/length": float(len(action)), "last": action, "talk/word": "a text"}
        return super().step(action)


class Plain(Talk):
    """Has a reward only."""


def test_they_are_columns_and_metrics(hf_tokenizer: Any, tiny_model: Any, tmp_path: Path) -> None:
    seen: list[Any] = []

    @scored_only
    def length(completions: Any, last: Any, **columns: Any) -> list[float]:
        seen.append((columns["environment"], last, columns["talk/length"]))
        return [0.0 if text is None else float(len(text)) for text in last]

    run = Run(
        hf_tokenizer,
        tiny_model(),
        tmp_path,
        {"judged": Judged, "plain": Plain},
        reward_funcs=[env_reward, length],
        columns={"environment": ["judged", "plain"] * 4},
        max_steps=1,
    )
    run.trainer.train()
    ((names, texts, lengths),) = seen
    judged = [name == "judged" for name in names]
    assert sum(judged) == 4
    assert [text is not None for text in texts] == judged
    assert lengths == [None if text is None else float(len(text)) for text in texts]
    log = run.trainer.state.log_history[0]
    known = [length for length in lengths if length is not None]
    assert log["talk/length"] == pytest.approx(sum(known) / 4)
    word = log["talk/word"]
    assert word is None or word != word, "a text is left out of the mean"
    assert "last" not in log


def test_a_batch_without_them_has_the_columns_of_the_batches_before(
    hf_tokenizer: Any, called: Any, stage: Any
) -> None:
    from abut.trl import make_rollout_func
    from tests.kit.stage.rollouts import Recording

    makes = iter([Judged, Plain])
    source = SimpleNamespace(next=Judged)
    rollout_func = make_rollout_func(lambda: source.next(), sampler=Recording(stage.says()))
    trainer = a_trainer(hf_tokenizer)
    columns = []
    for source.next in makes:
        columns.append(rollout_func(["a", "b"], trainer))
    assert all(isinstance(text, str) for text in columns[0]["last"])
    assert columns[1]["last"] == columns[1]["talk/length"] == [None, None]


def test_a_taken_name_is_an_error_of_the_first_batch(called: Any) -> None:
    from abut.errors import EnvError

    with pytest.raises(EnvError, match="extras has 'prompt', which is a column of abut or TRL"):
        called(["a", "b"], env(extras={"prompt": 1.0}))


def test_a_class_for_trls_environment_factory_has_them_too(stage: Any, hf_tokenizer: Any) -> None:
    import copy
    import threading

    from abut.template.processor import ChatTemplateProcessor
    from abut.trl import from_environment_factory, make_rollout_func
    from tests.kit.data.templates import CHATML, SHOWN
    from tests.kit.stage.rollouts import Recording, Stage

    class Door:
        """Opens."""

        def reset(self, **row: Any) -> None:
            self.opened, self._thread = 0, threading.get_ident()

        def open(self) -> str:
            """Open it."""
            self.opened += 1
            return "open"

        @property
        def extras(self) -> Any:
            return {"opened": self.opened, "alone": self._thread == threading.get_ident()}

    hf = copy.deepcopy(hf_tokenizer)
    hf.chat_template = SHOWN + CHATML
    source = from_environment_factory(Door, format="hermes")
    written = Stage(stage.tokenizer, ChatTemplateProcessor(hf, tools=source.tools))
    call = '<tool_call>\n{"name": "open", "arguments": {}}\n</tool_call>'
    sampler = Recording(lambda request: written.says((call, "done")[request.turn])(request))
    columns = make_rollout_func(source, sampler=sampler)(["a"], a_trainer(hf))
    assert (columns["opened"], columns["alone"]) == ([1.0], [1.0])


def test_columns_that_are_there_stay() -> None:
    rows: dict[str, list[Any]] = {"rollout_id": ["a"], "here": [1.0]}
    fill_extras(rows, ["here", "there"])
    assert rows == {"rollout_id": ["a"], "here": [1.0], "there": [None]}
