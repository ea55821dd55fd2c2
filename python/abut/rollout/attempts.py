"""The attempts that play, and how old the weights are that each was sampled with.

Invariant: a token is labelled with the oldest weights that can have sampled it. So a rollout that
counts as fresh is fresh; a server that goes on with new weights in the middle of an answer does not
say at which token it did.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from abut.samplers.sampler import Sample


@dataclass(eq=False)
class Attempt:
    """One that plays."""

    task: asyncio.Task[object]
    oldest: int | None = None
    """The version that sampled when it first asked; None: it has not."""
    is_stale: bool = False
    """Whether it was ended because that is too long ago."""


class Attempts:
    """Those of one batch; all calls come from its loop.

    Args:
        version: of the weights that sample; None: nobody counts them.
        max_staleness: an attempt whose oldest weights are more versions behind is ended; None:
            none is.
        forget: called with the id of each that is over.
    """

    def __init__(
        self,
        version: int | None = None,
        max_staleness: int | None = None,
        *,
        forget: Callable[[str], object] = lambda request_id: None,
    ) -> None:
        self.version = version
        self._max_staleness = max_staleness
        self._forget = forget
        self._playing: dict[str, Attempt] = {}

    def __len__(self) -> int:
        return len(self._playing)

    @contextmanager
    def plays(self, request_id: str) -> Iterator[Attempt]:
        """While this task plays one; its requests for samples bear this id."""
        task = asyncio.current_task()
        assert task is not None
        attempt = self._playing[request_id] = Attempt(task)
        try:
            yield attempt
        finally:
            del self._playing[request_id]
            self._forget(request_id)

    def asks(self, request_id: str) -> int | None:
        """Note that it asks for a sample; returns the version of the weights."""
        attempt = self._playing.get(request_id)
        if attempt is not None and attempt.oldest is None:
            attempt.oldest = self.version
        return self.version

    def forget(self, request_id: str) -> None:
        """Tell the sampler that nothing more is asked under this id."""
        self._forget(request_id)

    def labelled(self, sample: Sample, asked: int | None) -> Sample:
        """A sample with the versions of its tokens, where its sampler has not given them."""
        if asked is None or not isinstance(sample, Sample):
            return sample
        versions = sample.versions
        if versions is None:
            versions = np.full(len(sample.ids), asked, np.int64)
        return dataclasses.replace(sample, versions=versions, newest_version=self.version)

    def update(self, version: int) -> None:
        """Note that other weights sample from now on, and end what has become too old."""
        self.version = version
        if self._max_staleness is None:
            return
        for attempt in self._playing.values():
            behind = 0 if attempt.oldest is None else version - attempt.oldest
            if behind > self._max_staleness and not attempt.is_stale:
                attempt.is_stale = True
                attempt.task.cancel()
