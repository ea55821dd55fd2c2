"""Environments: the protocols, the guards around the user's code, and the built-in ones.

The built-in environments are text in, text out, need only the standard library, and play the same
episode for the same seed.
"""

from abut.envs.built_in import CopyRowEnv, EchoEnv, WordGuessEnv

__all__ = ["CopyRowEnv", "EchoEnv", "WordGuessEnv"]
