"""Ray: environments and agents in processes on a cluster, lent like those of any pool.

Invariant: a lease is used for one episode; no call is sent twice, and an actor that does not answer
is never lent again.
"""

from abut.ray.ray_pool import RayPool

__all__ = ["RayPool"]
