"""Eval Protocol: an unmodified `@evaluation_test` is environment and reward of a training run.

Invariant: a rollout's calls go to the policy, and nothing else does; the package is not imported
before a test is named.
"""

from abut.eval_protocol.eval_agent import eval_test
from abut.eval_protocol.openenv_helper import create_openenv_vllm_rollout_func
from abut.eval_protocol.row_log import prune_logs

__all__ = ["create_openenv_vllm_rollout_func", "eval_test", "prune_logs"]
