"""What an error of somebody else says.

Invariant: it is always a text, and a short one: an exception may fail to say what it is, or say it
in megabytes.
"""

_LONGEST = 2_000


def text_of(error: BaseException) -> str:
    """Class and message of an error, as errors of ours quote it."""
    name = type(error).__name__
    try:
        said = str(error)
    except BaseException as second:  # its `__str__` is foreign code as well
        return f"{name} (whose text raises {type(second).__name__})"
    if len(said) > _LONGEST:
        said = f"{said[:_LONGEST]}… ({len(said):,} characters)"
    return f"{name}: {said}"
