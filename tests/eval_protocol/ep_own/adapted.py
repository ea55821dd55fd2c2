"""Rows from a file, by an adapter, cut and filtered; another model judges the answers."""

from pathlib import Path
from typing import Any

import litellm
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


@evaluation_test(
    input_dataset=[str(Path(__file__).with_name("words.jsonl"))],
    dataset_adapter=adapt,
    max_dataset_rows=3,
    filtered_row_ids=["boat", "car"],
    completion_params=[{"model": "openai/any-model", "temperature": 0.0, "max_tokens": 16}],
    rollout_processor=SingleTurnRolloutProcessor(),
    disable_browser_open=True,
)
async def test_judged(row: EvaluationRow) -> EvaluationRow:
    """A judge is asked as people ask one: where OPENAI_BASE_URL says."""
    asked = [{"role": "user", "content": f"Judge: {row.messages[-1].content}"}]
    reply = await litellm.acompletion(model="openai/judge", messages=asked)
    score = float(reply.choices[0].message.content)
    row.evaluation_result = EvaluateResult(score=score, reason="the judge")
    return row
