"""Environments: the protocols, the guards around the user's code, and the built-in ones.

Those are text in, text out, standard library only, and the same for the same seed.
"""

from abut.envs.copy_row import CopyRowEnv
from abut.envs.echo import EchoEnv
from abut.envs.word_guess import WordGuessEnv

__all__ = ["CopyRowEnv", "EchoEnv", "WordGuessEnv"]
