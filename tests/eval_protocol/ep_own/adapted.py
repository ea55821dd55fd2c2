"""Rows from a file, by an adapter, cut, changed and filtered; a judge of its own scores them."""

import os
from pathlib import Path
from typing import Any

from eval_protocol.mcp.execution.policy import LiteLLMPolicy
from eval_protocol.models import EvaluateResult, EvaluationRow, InputMetadata, Message
from eval_protocol.pytest import SingleTurnRolloutProcessor, evaluation_test


def adapt(lines: list[dict[str, Any]]) -> list[EvaluationRow]:
    return [
        EvaluationRow(
            messages=[Message(role="user", content=f"How many letters has {line['word']}?")],
            ground_truth={"letters": line["letters"], "word": line["word"]},
            input_metadata=InputMetadata(row_id=line["word"]),
        )
        for line in lines
    ]


def ask_twice(rows: list[EvaluationRow]) -> list[EvaluationRow]:
    for row in rows:
        row.messages.insert(0, Message(role="system", content="Count."))
    return rows


@evaluation_test(
    input_dataset=[str(Path(__file__).with_name("words.jsonl"))],
    dataset_adapter=adapt,
    max_dataset_rows=3,
    filtered_row_ids=["boat", "car"],
    preprocess_fn=ask_twice,
    completion_params=[{"model": "openai/any-model", "temperature": 0.0, "max_tokens": 16}],
    rollout_processor=SingleTurnRolloutProcessor(),
    disable_browser_open=True,
)
async def test_judged(row: EvaluationRow) -> EvaluationRow:
    """Another model says how good it is, asked as people do: where the process says."""
    judge = LiteLLMPolicy(model_id="openai/judge", base_url=os.environ["JUDGE_URL"], api_key="j")
    said = str(row.messages[-1].content or "")
    asked = [{"role": "user", "content": f"Score this: {said}"}]
    reply = await judge._make_llm_call(asked, [])
    score = float(reply["choices"][0]["message"]["content"])
    row.evaluation_result = EvaluateResult(score=score, reason="the judge")
    return row
