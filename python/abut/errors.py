"""The errors of abut.

    AbutError
    ├── TokenizerError (ValueError)      a tokenizer that cannot be loaded or used exactly
    ├── ControlTokenError (ValueError)   `added="raise"`: the text spells a control token
    ├── TrajectoryError (ValueError)     what would break the invariant of a trajectory
    ├── SeamError (ValueError)           recorded calls that do not join
    ├── TemplateError (ValueError)       a chat template that cannot be appended to exactly
    ├── ImageError (ValueError)          an image that cannot be read or taken
    ├── EnvError (RuntimeError)          an environment that failed or returned the wrong thing
    ├── InvalidAction (ValueError)       an action that cannot be taken: the policy's fault
    ├── SamplerError (RuntimeError)      a sampler that failed or returned the wrong thing
    ├── RolloutError (RuntimeError)      rollouts that failed where failures are not tolerated
    ├── TeacherError (RuntimeError)      a teacher that refused or returned the wrong thing
    │   └── TeacherUnavailable (ConnectionError)  a teacher that did not score a row in time
    └── MissingExtraError (ImportError)  an optional dependency that is not installed

Each is also the builtin exception that it stands for. Messages say what, where and both sides; a
last line `hint: …` says what to do.
"""

import traceback


class AbutError(Exception):
    """Base of all errors that abut raises on purpose."""


class TokenizerError(AbutError, ValueError):
    """A tokenizer that cannot be loaded, or an input that it cannot encode or decode."""


class ControlTokenError(AbutError, ValueError):
    """With `added="raise"`: the text spells a control token."""


class TrajectoryError(AbutError, ValueError):
    """A call would break the invariant of a trajectory: an append, a fork, columns of nothing."""


class SeamError(AbutError, ValueError):
    """Two pieces that do not join: the tokens differ where they must agree."""


class TemplateError(AbutError, ValueError):
    """A chat template that cannot be appended to exactly, and why."""


class ImageError(AbutError, ValueError):
    """An image that cannot be read, or that no conversation takes."""


class EnvError(AbutError, RuntimeError):
    """An environment that failed, was too slow, or returned the wrong thing."""

    trace: str = ""
    """Where in the environment: the traceback of what it raised, or the place that is meant."""
    may_pass: bool
    """False if another attempt would fail too, so that none is made."""

    def __init__(self, *args: object, may_pass: bool = True) -> None:
        super().__init__(*args)
        self.may_pass = may_pass


class InvalidAction(AbutError, ValueError):
    """An action that its environment cannot take: the policy's fault, so it is never retried.

    Its text is what the policy is told.
    """


class SamplerError(AbutError, RuntimeError):
    """A sampler that failed or returned the wrong thing."""


class RolloutError(AbutError, RuntimeError):
    """Rollouts that failed where the configuration does not tolerate it."""


class TeacherError(AbutError, RuntimeError):
    """A teacher that refused a row, cannot score the student, or returned the wrong thing."""


class TeacherUnavailable(TeacherError, ConnectionError):
    """A teacher did not score a row in time, and may score the next."""


class MissingExtraError(AbutError, ImportError):
    """An optional dependency that is not installed."""


_LONGEST_TEXT = 2_000
_LONGEST_TRACE = 20_000


def text_of(error: BaseException) -> str:
    """Class and message of an error of somebody else, as errors of ours quote it.

    Always a text, and a short one: an exception may fail to say what it is, or say it in megabytes.
    """
    name = type(error).__name__
    try:
        said = str(error)
    except BaseException as second:  # its `__str__` is foreign code as well
        return f"{name} (whose text raises {type(second).__name__})"
    if len(said) > _LONGEST_TEXT:
        said = f"{said[:_LONGEST_TEXT]}… ({len(said):,} characters)"
    return f"{name}: {said}"


def printable(text: str) -> str:
    """A text for a terminal, which must not obey what somebody else wrote; line ends stay."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def trace_of(error: BaseException, *, own: bool = False) -> str:
    """The traceback of an error, with what caused it: always a text, and a bounded one.

    Args:
        error: it, or anything that foreign code raised.
        own: it is one of ours, and what caused it may be foreign. No method of that is called, so
            this is quick wherever it runs; the cause is left out.
    """
    try:
        if own:
            frames = _unmarked(traceback.extract_tb(error.__traceback__)).format()
            text = "".join(["Traceback (most recent call last):\n", *frames, text_of(error)])
        else:
            text = "".join(_without_marks(error).format()).rstrip()
    except BaseException as second:  # what it says of itself is foreign code as well
        text = f"(a traceback that raises {type(second).__name__})"
    if len(text) <= _LONGEST_TRACE:
        return text
    half = _LONGEST_TRACE // 2
    return f"{text[:half]}\n… ({len(text):,} characters)\n{text[-half:]}"


def _without_marks(error: BaseException) -> traceback.TracebackException:
    """Return the text of an error and its causes, without marks below its lines.

    For these Python parses each line, and where other threads parse then, be it code, CPython 3.11
    can fail in any of them: `SystemError: AST constructor recursion depth mismatch`.
    """
    whole = traceback.TracebackException.from_exception(error)
    left = [whole]
    while left:
        one = left.pop()
        _unmarked(one.stack)
        others = (one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ()))
        left += [other for other in others if other is not None]
    return whole


def _unmarked(stack: traceback.StackSummary) -> traceback.StackSummary:
    for frame in stack:
        frame.colno = frame.end_colno = None
    return stack
