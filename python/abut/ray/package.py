"""Ray itself, which is imported only when a pool is made."""

from typing import Any

from abut.errors import MissingExtraError


def the_ray() -> Any:
    """The package.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("abut.ray needs Ray: pip install 'abut[ray]'") from error
    return ray
