"""The measured parts of TRL's GRPOTrainer, without a model.

The methods are TRL's own, bound to a namespace with the attributes that they read.
"""

from types import SimpleNamespace
from typing import Any

from benchmarks.peers import PeerMissing
from benchmarks.workbench import Workbench

METHODS = ("_get_tool_suffix_ids", "_tool_call_loop")


def trainer_stub(workbench: Workbench) -> Any:
    """Return a stub of a trainer with this tokenizer and its chat template.

    Raises:
        PeerMissing: TRL is not installed, or does not have these methods.
    """
    trainer = workbench.peer("trl", "trl.trainer.grpo_trainer").GRPOTrainer
    templates = workbench.peer("trl", "trl.chat_template_utils")
    # The same choice as in the constructor of GRPOTrainer.
    preserving = templates.is_chat_template_prefix_preserving(workbench.hf_tokenizer)
    stub = SimpleNamespace(
        processing_class=workbench.hf_tokenizer,
        _tokenizer=workbench.hf_tokenizer,
        _is_vlm=False,
        chat_template=None
        if preserving
        else templates.get_training_chat_template(workbench.hf_tokenizer),
        chat_template_kwargs={},
    )
    for name in METHODS:
        if not hasattr(trainer, name):
            raise PeerMissing(f"this version of TRL has no GRPOTrainer.{name}")
        setattr(stub, name, getattr(trainer, name).__get__(stub))
    return stub
