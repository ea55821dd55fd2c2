"""Environments of the old API, without data and network."""

import json
from typing import Any

import verifiers as vf
from datasets import Dataset


def rows(*kinds: str) -> Dataset:
    """One row of each kind."""
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": f"task {kind}"}],
                "answer": kind,
                "info": {"kind": kind},
            }
            for kind in kinds
        ]
    )


def text_of(completion: Any) -> str:
    """All that was said after the prompt."""
    said = [one if isinstance(one, dict) else one.model_dump() for one in completion]
    return "".join(str(one.get("content") or "") for one in said)


class Talk(vf.MultiTurnEnv):  # type: ignore[misc]
    """Asks twice more; some kinds break at the second turn."""

    async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
        """Reply, or raise."""
        kind = state["info"]["kind"]
        if kind == "typed":
            raise vf.Error("the environment is broken")
        if kind == "untyped":
            raise RuntimeError("the environment is broken")
        return [{"role": "user", "content": f"turn {len(state['trajectory'])}: more"}]


async def length(completion: Any) -> float:
    """The length of all texts."""
    return len(text_of(completion)) / 64


def fussy(info: Any, completion: Any) -> Any:
    """Raise, or return what is no score, by the kind."""
    kind = info["kind"]
    if kind == "raises":
        raise RuntimeError("the reward is broken")
    return {"none": None, "nan": float("nan"), "text": "much"}.get(kind, 0.5)


async def counts(state: Any, **_: Any) -> float:
    """A metric that raises for one kind."""
    if state["info"]["kind"] == "metric":
        raise RuntimeError("the metric is broken")
    return 3.0


async def best(completions: Any, infos: Any) -> list[float]:
    """1 for the longest of a group."""
    if infos[0]["kind"] == "raises":
        raise RuntimeError("the comparison is broken")
    lengths = [len(text_of(one)) for one in completions]
    return [float(one == max(lengths)) for one in lengths]


def place(prompts: Any, completions: Any, **_: Any) -> list[float]:
    """The place of each of a group; one too few where the kind says so."""
    return [float(n) for n in range(len(completions))][: 1 if "short" in str(prompts[0]) else None]


def lookup(word: str) -> str:
    """Look a word up.

    Args:
        word: any word.
    """
    return f"{word} is a number"


def load_environment(shape: str = "talk", kinds: str = '["fine"]') -> vf.Environment:
    """Return an environment of a shape, with a row of each kind."""
    data = rows(*json.loads(kinds))
    if shape == "talk":
        rubric = vf.Rubric(funcs=[length, fussy, counts], weights=[1.0, 0.5, 0.0])
        return Talk(dataset=data, rubric=rubric, max_turns=3)
    if shape == "tools":
        return vf.ToolEnv(
            dataset=data, tools=[lookup], rubric=vf.Rubric(funcs=[length]), max_turns=3
        )
    if shape == "metrics":
        rubric = vf.Rubric(funcs=[counts], weights=[0.0])
        return vf.SingleTurnEnv(dataset=data, rubric=rubric)
    assert shape == "group"
    rubric = vf.Rubric(funcs=[best, place], weights=[1.0, 0.0])
    return vf.SingleTurnEnv(dataset=data, rubric=rubric)
