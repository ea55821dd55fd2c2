"""Environments: the protocols, the guards around the user's code, and the built-in ones.

Those are text in, text out, standard library only, and the same for the same seed.
"""

from abut.envs.built_in import CopyRowEnv, EchoEnv, WordGuessEnv

__all__ = ["CopyRowEnv", "EchoEnv", "WordGuessEnv"]
