"""What a pool lends: a slot of an actor, and the calls that go there."""

from contextlib import suppress
from typing import Any

from abut.concurrency.pool_loop import PoolLoop
from abut.envs.reset_keywords import UnplayableRow
from abut.errors import EnvError
from abut.ray.answers import Failed
from abut.ray.host_pool import HostPool, Lease


class Lent:
    """Base of what plays elsewhere.

    Args:
        hosts: lend the slot.
        loop: of the pool; there the hosts are asked.
        name: what errors call it.
    """

    def __init__(self, hosts: HostPool, loop: PoolLoop, name: str) -> None:
        self._loop = loop
        self.lease: Lease | None = None
        """The slot, from `open` to `close`."""
        self._hosts = hosts
        self._name = name
        self._given_back = False

    async def open(self) -> None:
        """Wait for a slot; on the loop of the pool."""
        lease = await self._hosts.lend()
        if self._given_back:  # nobody waits any more
            self._hosts.give_back(lease)
            return
        self.lease = lease

    def close(self) -> None:
        """Give the slot back; does not wait."""
        with suppress(EnvError):  # the pool is closed, and every actor with it
            self._loop.submit(self._give_back)

    async def asked(self, name: str, method: str, *args: Any) -> Any:
        """What a method of the actor answers; on the loop of the pool.

        Args:
            name: what errors call this.
            method: of the actor.
            args: what it gets behind the number of the lease.

        Raises:
            EnvError: it raised there, or the actor is gone.
            UnplayableRow: the row lacks what is asked for.
        """
        if self.lease is None:
            raise EnvError(f"{name} after it was given back")
        answer = await self._hosts.ask(self.lease, name, method, *args)
        if not isinstance(answer, Failed):
            return answer
        if answer.is_row:
            raise UnplayableRow(answer.text)
        error = EnvError(answer.text)
        error.trace, error.may_pass = answer.trace, answer.may_pass
        raise error

    async def _give_back(self) -> None:
        self._given_back = True
        lease, self.lease = self.lease, None
        if lease is not None:
            self._hosts.give_back(lease)
