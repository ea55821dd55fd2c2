"""The built-in environments: text in, text out, and the same episode for the same seed."""

import random
import re
from collections import Counter
from typing import Self


class EchoEnv:
    """Repeats each action, `turns` times.

    `reward`, 0 to 1, is the share of the `turns` in which the policy said something.
    """

    def __init__(self, turns: int = 3) -> None:
        self.turns = turns
        self.reward = 0.0
        self.alive = True
        self._left = turns

    def reset(self, seed: str) -> tuple[Self, str]:
        """Begin the episode; the first text is the seed itself."""
        self.reward, self.alive, self._left = 0.0, True, self.turns
        return self, seed

    def step(self, action: str) -> tuple[Self, str]:
        """Return the action unchanged."""
        if action.strip():
            self.reward += 1 / self.turns
        self._left -= 1
        self.alive = self._left > 0
        return self, action


class CopyRowEnv:
    """Each turn shows a row of one symbol, `Say 2222`; the right answer is that row.

    `reward` is the mean overlap with the row over all `turns`, 0 to 1, so it is dense: one right
    character among noise already counts, and only the exact row counts in full. The right answer
    depends on the turn: always giving the same answer earns `1/len(symbols)`.

    Any text is an answer, even one that was cut at the length limit, because an untrained model
    rarely emits the stop token.

    Args:
        turns: rows in one episode.
        symbols: the symbols of a row, by default digits, because tokenizers do not merge them:
            a row of four is four tokens, so an answer of four tokens can be exact without a stop
            token.
        length: symbols in a row. One symbol is a harder task, because an untrained model attends to
            it less: with `Say 2`, a model had not learned to read it after 120 steps.
    """

    def __init__(self, turns: int = 3, symbols: str = "0123", length: int = 4) -> None:
        self.turns = turns
        self.symbols = symbols
        self.length = length
        self.reward = 0.0
        self.alive = True
        self._shown: list[str] = []
        self._turn = 0

    def reset(self, seed: str, *, episode_seed: int = 0) -> tuple[Self, str]:
        """Begin the episode; the rows depend only on `seed` and `episode_seed`."""
        rng = random.Random(f"{episode_seed} {seed}")
        self._shown = [rng.choice(self.symbols) for _ in range(self.turns)]
        self._turn, self.reward, self.alive = 0, 0.0, True
        return self, self._prompt()

    def step(self, action: str) -> tuple[Self, str]:
        """Score the answer and show the next row; after the last one the episode is over."""
        self.reward += self.overlap(action.strip(), self._shown[self._turn]) / self.turns
        self._turn += 1
        self.alive = self._turn < self.turns
        return self, self._prompt() if self.alive else "Done."

    def overlap(self, answer: str, symbol: str) -> float:
        """Return the share of the longer of answer and row that is the row's symbol, 0 to 1."""
        return min(answer.count(symbol), self.length) / max(len(answer), self.length)

    def _prompt(self) -> str:
        return f"Say {self._shown[self._turn] * self.length}"


_WORDS = """
about above actor adult agent alarm album alive angle apple beach bench birth black blade blind
block board brain bread brick bring brown brush cabin candy chain chair chalk charm chess chief
child clean clear clock cloth cloud coast cream crowd crown dance depth dough draft dream drink
eagle early earth empty entry equal event faith field final flame flood floor fluid focus
frame fresh front fruit ghost giant glass globe grain grape grass green group guest guide happy
heart heavy honey horse hotel house image jelly joint judge juice knife label large laser lemon
level light limit lucky lunch magic maple march metal minor model money month motor mount mouse
mouth music night noise north novel nurse ocean offer olive onion order other paint panel paper
party peace phone piano pilot pitch place plain plane plant plate point pound power press price
pride prize proud queen quick quiet radio range rapid ratio reply river robot rough round route
salad scale scene scope score shade shape share sharp sheep sheet shelf shell shirt shore short
skill sleep slice slope small smart smile smoke snake solid sound south space spare spice spoon
sport stage stair start steam steel stick stone store storm story sugar sunny sweet table taste
teach thing tiger tight title toast topic total tower track trade train trust truth uncle union
upper urban value video visit voice waste watch water wheel white whole woman world worth young
"""
WORDS: tuple[str, ...] = tuple(_WORDS.split())

# Bounded, so that a degenerate answer of a thousand brackets costs no quadratic time.
_MARKED = re.compile(r"<guess>([^<]{0,40})</guess>|\[([^\[\]]{0,40})\]")
_WORD = re.compile(r"[A-Za-z]+")

RULES = (
    "Guess the secret word of five letters. After each guess you see, under each letter: "
    "G right place, Y in the word but elsewhere, X not in the word. "
    "You have {guesses} guesses. Answer with one word, like [stone]."
)


class WordGuessEnv:
    """A word-guessing game. Text in, text out.

    `reward`, 0 to 1: an unsolved game earns half the letter score of the best guess, at most 0.5
    (a letter in the right place counts 1, elsewhere 0.5, divided by five). A game solved with the
    first guess earns 1.0, and 0.1 less for each further one of six guesses, so solving always earns
    more than not solving.

    A guess is the last `[word]` or `<guess>word</guess>`, or else the last word of five letters, in
    any case and from the list or not. An answer without a guess costs one, and the reply says so.
    """

    def __init__(self, guesses: int = 6) -> None:
        self.guesses = guesses
        self.secret = ""
        self.reward = 0.0
        self.alive = True
        self._left = guesses

    def reset(self, seed: str, *, episode_seed: int = 0) -> tuple[Self, str]:
        """Begin the episode; the secret depends only on `seed` and `episode_seed`."""
        self.secret = random.Random(f"{episode_seed} {seed}").choice(WORDS)
        self._left, self.reward, self.alive = self.guesses, 0.0, True
        return self, RULES.format(guesses=self.guesses)

    def step(self, action: str) -> tuple[Self, str]:
        """Judge one guess."""
        used = self.guesses - self._left
        self._left -= 1
        self.alive = self._left > 0
        guess = parse_guess(action)
        if guess is None:
            return self, f"That is not a word of five letters. {self._rest()}"
        if guess == self.secret:
            self.alive = False
            self.reward = 1.0 - 0.6 * used / self.guesses
            return self, f"{guess} is right."
        marks = feedback(guess, self.secret)
        score = (marks.count("G") + 0.5 * marks.count("Y")) / len(marks)
        self.reward = max(self.reward, 0.5 * score)
        return self, f"{' '.join(guess.upper())}\n{' '.join(marks)}\n{self._rest()}"

    def _rest(self) -> str:
        if self.alive:
            return f"Guesses left: {self._left}."
        return f"No guesses left. The word was {self.secret}."


def parse_guess(action: str) -> str | None:
    """Return the guess in an answer, in lower case; None if there is none."""
    marked = [angled or square for angled, square in _MARKED.findall(action)]
    if marked:
        word = marked[-1].strip().lower()
        return word if len(word) == 5 and _WORD.fullmatch(word) else None
    words = [word for word in _WORD.findall(action) if len(word) == 5]
    return words[-1].lower() if words else None


def feedback(guess: str, secret: str) -> str:
    """Return one mark for each letter: `G`, `Y` or `X`.

    If the guess has a letter more often than the secret, the letter gets marks only as often as the
    secret has it: first in right places, then from the left.
    """
    marks = ["G" if a == b else "X" for a, b in zip(guess, secret, strict=True)]
    free = Counter(b for a, b in zip(guess, secret, strict=True) if a != b)
    for i, letter in enumerate(guess):
        if marks[i] == "X" and free[letter]:
            marks[i] = "Y"
            free[letter] -= 1
    return "".join(marks)
