"""An environment to start with: guess the digit. Actors import it by name."""

import random
import re


class GuessTheDigit:
    """The reward is 1.0 for a right first guess, 0.5 for a right second guess, and so on."""

    def __init__(self):
        self.reward, self.alive, self.worth = 0.0, True, 1.0

    def reset(self, seed, *, episode_seed):
        self.secret = random.Random(episode_seed).choice("0123456789")  # the same for a whole group
        return self, "I think of a digit. Which?"

    def step(self, action):
        guess = re.search("[0-9]", action)
        if guess and guess[0] == self.secret:
            self.reward, self.alive = self.worth, False
            return self, "Right."
        self.worth /= 2
        if guess is None:
            return self, "That is not a digit."
        return self, "Higher." if guess[0] < self.secret else "Lower."
