"""The errors of abut.

    AbutError
    ├── TokenizerError (ValueError)       a tokenizer or its input cannot be used exactly
    ├── ControlTokenError (ValueError)    a string spells a control token, which you forbade
    ├── TrajectoryError (ValueError)      a call would break a trajectory
    ├── SeamError (ValueError)            recorded calls do not join
    ├── TemplateError (ValueError)        a chat template cannot be appended to exactly
    ├── ImageError (ValueError)           an image cannot be read or placed
    ├── EnvError (RuntimeError)           an environment failed or returned the wrong thing
    ├── InvalidAction (ValueError)        the policy chose an action that cannot be taken
    ├── SamplerError (RuntimeError)       a sampler failed or returned the wrong thing
    ├── RolloutError (RuntimeError)       too many rollouts failed
    ├── TeacherError (RuntimeError)       a teacher refused a row or returned the wrong thing
    │   └── TeacherUnavailable (ConnectionError)   a teacher did not answer in time
    └── MissingExtraError (ImportError)   an optional package is not installed

Each class is also the builtin exception that it stands for. A message says what is wrong, where,
and both sides; a last line `hint: …` says what to do.
"""

import traceback


class AbutError(Exception):
    """Base class of all errors that abut raises on purpose.

    Catch it to handle every error of abut. An error that is not an `AbutError` comes from your own
    code or from another package, or is a bug of abut.
    """


class TokenizerError(AbutError, ValueError):
    """A tokenizer cannot be loaded, or cannot encode or decode an input exactly.

    The usual causes are a path without a complete `tokenizer.json`, a tokenizer of transformers
    that is not a fast one, and ids that come from another tokenizer. Pass the tokenizer of the
    model that samples; `abut check MODEL` shows what abut reads from it.
    """


class ControlTokenError(AbutError, ValueError):
    """A text spells a control token, and `added="raise"` forbids that.

    Encode the text with `added="text"` if it is content, which must stay text, or with
    `added="parse"` if it is meant to contain the token.
    """


class TrajectoryError(AbutError, ValueError):
    """A call would break the invariant of a trajectory.

    Tokens were appended out of order, without one logprob for each sampled token, or at a place
    where a trajectory cannot be forked. Send `request()` to the engine, append the tokens that it
    sampled with their logprobs, then append the reply.
    """


class SeamError(AbutError, ValueError):
    """Recorded calls do not join: tokens differ where they must agree.

    Usually the client rendered the conversation again, so a later prompt does not begin with the
    tokens of the earlier call. Record token ids instead of text, or choose with
    `stitch(..., on_drift=...)` how such calls become rows.
    """


class TemplateError(AbutError, ValueError):
    """A chat template cannot be appended to exactly; the message says why.

    `abut check MODEL` shows each seam of the template. Pass another template with
    `ChatTemplateProcessor(tokenizer, chat_template=...)`, or change the messages as the hint says.
    """


class ImageError(AbutError, ValueError):
    """An image cannot be read, or the conversation cannot take it.

    Pass a `PIL.Image`, an array of 8-bit values, or the bytes of a PNG or JPEG file, and place it
    in a message of a role that the chat template shows images for. Larger images must be scaled
    down first.
    """


class EnvError(AbutError, RuntimeError):
    """An environment failed, was too slow, or returned the wrong thing.

    The rollout is recorded with this error and the traceback of your code; `abut show` prints
    both, and `abut play MODULE:NAME` plays the environment without a model. If it is slow rather
    than wrong, raise `RolloutConfig.step_timeout_s` or `reset_timeout_s`.
    """

    trace: str = ""
    """The traceback of the exception that the environment raised, or the place of the fault."""
    may_pass: bool
    """False if another attempt would fail too, so abut does not retry."""

    def __init__(self, *args: object, may_pass: bool = True) -> None:
        super().__init__(*args)
        self.may_pass = may_pass


class InvalidAction(AbutError, ValueError):
    """The policy chose an action that its environment cannot take.

    Your environment raises it, with the text that the policy is told as the message. The rollout
    is never retried, because the action is the policy's fault.
    """


class SamplerError(AbutError, RuntimeError):
    """A sampler failed, could not be reached, or returned the wrong thing.

    Check that the server runs, serves the model of the tokenizer, and holds prompts as long as
    yours. The rollout is retried; `abut doctor --vllm URL` checks a vLLM server.
    """


class RolloutError(AbutError, RuntimeError):
    """More rollouts failed than the configuration tolerates.

    The message counts the failures by kind and shows one of each. Fix their cause, or raise
    `RolloutConfig.max_failed_frac`. With `on_failure="raise"` the first failure raises this error.
    """


class TeacherError(AbutError, RuntimeError):
    """A teacher refused a row, cannot score the student, or returned the wrong thing.

    Student and teacher need the same tokenizer, and the teacher must hold rows as long as the
    student's. A vLLM server needs `--max-logprobs` of at least the requested `teacher_top_k`.
    """


class TeacherUnavailable(TeacherError, ConnectionError):
    """A teacher did not score a row in time; it may score the next one.

    The row is not trained. Check that the server runs and is not overloaded, or raise `give_up_s`.
    """


class MissingExtraError(AbutError, ImportError):
    """An optional package is not installed, or its version does not fit.

    Install the extra that the message names, such as `pip install 'abut[trl]'`.
    """


_LONGEST_TEXT = 2_000
_LONGEST_TRACE = 20_000


def text_of(error: BaseException) -> str:
    """Return the class and message of any error, to quote it in a message.

    The text is short, and this never fails, although an exception's `__str__` may raise or return
    megabytes.
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
    """Return text that is safe to print: control characters are escaped, except line breaks."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def trace_of(error: BaseException, *, own: bool = False) -> str:
    """Return the traceback of an error and its causes, shortened if it is long; this never fails.

    Args:
        error: any error, including one that foreign code raised.
        own: True if `error` is abut's own. Then the causes are left out, and none of their methods
            is called, because they may be foreign and slow.
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
    """Return the traceback of an error and its causes, without the `^^^^` marks.

    To place the marks, Python parses each line. If other threads parse code at the same time,
    CPython 3.11 can fail in any of them: `SystemError: AST constructor recursion depth mismatch`.
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
