"""TextArena's Wordle, on the openenv package; with its own words, for NLTK would download them."""

from types import SimpleNamespace

import nltk

WORDS = ["crane", "slate", "audio"]
nltk.download = lambda *args, **kwargs: True
nltk.pos_tag = lambda tokens: [(token, "NN") for token in tokens]
nltk.corpus.words = SimpleNamespace(words=lambda fileid=None: WORDS)

import textarena.envs.Wordle.env as game  # noqa: E402
from guess_server import Guess, GuessAction, GuessObservation  # noqa: E402
from openenv.core.env_server.http_server import create_app  # noqa: E402

dictionary = game.EnglishDictionary()  # a second; each game has the same
game.EnglishDictionary = lambda **kwargs: dictionary


class Wordle(Guess):
    game_id = "Wordle-v0"


app = create_app(Wordle, GuessAction, GuessObservation, env_name="wordle", max_concurrent_envs=64)
