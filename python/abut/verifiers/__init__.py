"""Environments of verifiers, unchanged, with a row and a reward for each trained seat.

Invariant: a trace is a session of the gateway; no row of one seat ever has the reward of another.
verifiers is not imported before an environment is named.
"""

from abut.verifiers.load import verifiers_env

__all__ = ["verifiers_env"]
