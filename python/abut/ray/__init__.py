"""Ray: environments and agents in processes all over a cluster, lent as from any pool.

Invariant: one lease, one episode; no call is ever sent twice, and an actor that does not answer is
never lent again.
"""

from abut.ray.ray_pool import RayPool

__all__ = ["RayPool"]
