"""Tool calls of six families under a real `GRPOTrainer`: what is called is run, and answered.

The small model's vocabulary has the tokens of each family beside its own. It would never call
anything by chance: a script samples for it what the template writes.
"""

import copy
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

import abut
from abut import RolloutConfig
from abut.samplers.scripted import ScriptedSampler
from abut.template.calls.written import CallProbe, Turns, call_probes
from abut.template.processor import ChatTemplateProcessor
from tests.kit.data.public_calls import call_templates
from tests.kit.training.trl_run import Run

pytestmark = pytest.mark.slow

TEMPLATES = call_templates.chat_templates.templates()
FAMILIES = (
    "qwen3_training",  # a JSON object between tags
    "qwen3_5_nothink_training",  # parameters between tags
    "glm4moe_training",  # keys and values between tags; a turn ends on the next one's token
    "gemma4_v2",  # a notation of its own
    "lfm2_v2_training",  # Python
    "muse_glimmer_training",  # the name in a header as well
)
ADDED = [("add", {"a": 2, "b": 40}), ("add", {"a": 3, "b": 4})]


def extended(hf_tokenizer: Any, name: str) -> Any:
    """The small tokenizer with a family's template and tokens."""
    family = call_templates.chat_templates.family(name)
    hf = copy.deepcopy(hf_tokenizer)
    theirs = call_templates.chat_templates.tokenizer(TEMPLATES[name], family)
    hf.add_tokens(list(theirs.get_added_vocab()), special_tokens=True)
    hf.chat_template, hf.eos_token = TEMPLATES[name], family.eos
    hf.bos_token = family.bos
    hf.pad_token = hf.pad_token or family.eos
    hf.eos_token = ChatTemplateProcessor(hf).report.stop_tokens[0]  # TRL tells turns by it
    return hf


@pytest.mark.parametrize("name", FAMILIES)
def test_calls_of_a_family_are_run_and_trained(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Any, name: str
) -> None:
    added = []

    def add(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: one.
            b: the other.
        """
        added.append((a, b))
        return a + b

    hf = extended(hf_tokenizer, name)
    tokenizer = abut.Tokenizer.from_pretrained(hf)
    source = abut.tool_env([add], reward=lambda messages: float("42" in str(messages[-2])))
    processor = ChatTemplateProcessor(hf, tools=list(source.tools))
    render = call_templates.Template(f"trl/{name}", TEMPLATES[name]).render(source.tools)
    probe: CallProbe = next(call_probes(render))
    turn = Turns(probe, processor.report.stop_tokens).said(probe.written(ADDED))
    stop = next(v for v in processor.verdicts() if v.kind == "several tools").stop
    calls = [*tokenizer.encode(turn).tolist(), tokenizer.token_to_id(stop)]
    # What is spelled, token for token other than the tags, is said and not called.
    spelled = tokenizer.encode(turn, added="text").tolist()
    answer = [*spelled, processor.close_token_id]

    def script(request: Any) -> list[int]:
        return answer if request.turn else calls

    sizes = {"vocab_size": len(hf), "max_position_embeddings": 4096}
    model = tiny_model(**sizes, eos_token_id=hf.eos_token_id)
    run = Run(
        hf,
        model,
        tmp_path,
        source,
        prompts=[[{"role": "user", "content": "2 + 40?"}]] * 8,
        make={
            "config": RolloutConfig(retries=0),
            "sampler": ScriptedSampler(script, logprob=lambda _: -1.0),
        },
        max_steps=1,
        max_completion_length=2048,
    )
    run.trainer.train()
    (output,) = run.outputs
    assert sorted(added) == sorted([(2, 40), (3, 4)] * 8), "the spelled calls were not run"
    assert output["error"] == [None] * 8
    for ids, mask in zip(output["completion_ids"], output["env_mask"], strict=True):
        sampled = [token for token, own in zip(ids, mask, strict=True) if own]
        assert sampled == [*calls, *answer]
        said = tokenizer.decode([token for token, own in zip(ids, mask, strict=True) if not own])
        assert "42" in said
        assert "7" in said
