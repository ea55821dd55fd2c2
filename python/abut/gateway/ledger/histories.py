"""An index of rollouts by their messages, for requests that do not name a rollout.

Invariant: if `match` finds that a branch is the beginning of a request, the index finds the branch
too. It may also find others, so each branch is compared before it is used. The cost of a look-up
depends on the messages of the request, not on the number of other rollouts.
"""

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from abut.gateway.ledger.agent_call import AgentRequest
from abut.gateway.ledger.branch import LedgerBranch, find_continuation
from abut.gateway.ledger.entry import BranchEntry
from abut.gateway.ledger.ledger import Ledger
from abut.gateway.ledger.matching import History, is_left_out, keys_read, keys_returned


class _Node:
    """A beginning that rollouts share: the messages from the root to this node."""

    def __init__(self, parent: "_Node | None", keys: frozenset[Hashable]) -> None:
        self.parent = parent
        self.keys = keys
        self.by_key: dict[Hashable, list[_Node]] = {}
        self.by_keys: dict[frozenset[Hashable], _Node] = {}
        self.free: dict[OpenEnd, None] = {}  # an ordered set
        self.taken: dict[OpenEnd, None] = {}

    def child(self, keys: frozenset[Hashable]) -> "_Node":
        """Return the node after one more message; make it if it does not exist."""
        child = self.by_keys.get(keys)
        if child is None:
            child = self.by_keys[keys] = _Node(self, keys)
            for key in keys:
                self.by_key.setdefault(key, []).append(child)
        return child

    def prune(self) -> None:
        """Remove the node and its ancestors, as far as nothing follows them."""
        node = self
        while node.parent is not None and not (node.by_keys or node.free or node.taken):
            del node.parent.by_keys[node.keys]
            for key in node.keys:
                node.parent.by_key[key].remove(node)
                if not node.parent.by_key[key]:
                    del node.parent.by_key[key]
            node = node.parent


@dataclass(eq=False)
class OpenEnd:
    """The end of an answer, from which a request may continue.

    Attributes:
        ledger: the rollout's ledger.
        branch: its conversation.
        entries: how many entries the branch has, up to and including the answer.
        turns: how many answers are among them.
        node: its node in the index.
        is_passed: whether a request has continued from it.
        claims: how many requests that will continue from it are still being placed.
    """

    ledger: Ledger
    branch: LedgerBranch
    entries: int
    turns: int
    node: _Node
    is_passed: bool = False
    claims: int = 0

    @property
    def is_free(self) -> bool:
        """True if no request continues from it."""
        return not (self.is_passed or self.claims)


@dataclass(eq=False)
class _Path:
    """The part of one branch that is in the index."""

    node: _Node
    entries: int = 0
    open_ends: list[OpenEnd] = field(default_factory=list)


class Histories:
    """The histories of live rollouts, on the loop of the gateway."""

    def __init__(self) -> None:
        self.on_change: Callable[[], object] = lambda: None
        """Called when a rollout changes: it got a request, answered, or ended."""
        self._roots: dict[str, _Node] = {}
        self._paths: dict[Ledger, dict[LedgerBranch, _Path]] = {}
        self._by_digest: dict[bytes, dict[Ledger, None]] = {}
        self._digests_of: dict[Ledger, set[bytes]] = {}
        # By identity: a request cannot be hashed, and equal requests are not the same request.
        self._claims: dict[int, tuple[AgentRequest, OpenEnd]] = {}

    def add(self, ledger: Ledger) -> None:
        """Begin to follow a rollout."""
        self._paths[ledger], self._digests_of[ledger] = {}, set()
        ledger.observer = self

    def remove(self, ledger: Ledger) -> None:
        """Forget a rollout."""
        ledger.observer = None
        for path in self._paths.pop(ledger, {}).values():
            for open_end in path.open_ends:
                open_end.node.free.pop(open_end, None)
                open_end.node.taken.pop(open_end, None)
                open_end.node.prune()
        for digest in self._digests_of.pop(ledger, ()):
            del self._by_digest[digest][ledger]
            if not self._by_digest[digest]:
                del self._by_digest[digest]
        for frame in [frame for frame, root in self._roots.items() if not root.by_keys]:
            del self._roots[frame]
        self.on_change()

    # ---- what happens in a rollout

    def asked(self, ledger: Ledger, digest: bytes) -> None:
        """Note that a rollout got a request whose body has this digest."""
        self._by_digest.setdefault(digest, {})[ledger] = None
        self._digests_of[ledger].add(digest)

    def heard(self, ledger: Ledger, branch: LedgerBranch) -> None:
        """Note that a branch now ends with an answer."""
        paths = self._paths[ledger]
        if (path := paths.get(branch)) is None:
            root = self._roots.setdefault(branch.frame, _Node(None, frozenset()))
            path = paths[branch] = _Path(root)
        for entry in branch.entries[path.entries :]:
            if (keys := _keys_of(entry)) is not None:
                path.node = path.node.child(keys)
        path.entries = len(branch.entries)
        open_end = OpenEnd(ledger, branch, path.entries, len(branch.calls), path.node)
        path.open_ends.append(open_end)
        _file(open_end)
        self.on_change()

    def passed(self, ledger: Ledger, branch: LedgerBranch, entries: int) -> None:
        """Note that a request continues a branch after so many messages."""
        path = self._paths[ledger].get(branch)
        for open_end in reversed(path.open_ends if path is not None else []):
            if open_end.entries == entries:
                open_end.is_passed = True
                _file(open_end)
            if open_end.entries <= entries:
                break

    def claim(self, request: AgentRequest, open_end: OpenEnd) -> None:
        """Reserve an end for a request, until the request is placed or refused."""
        self._claims[id(request)] = request, open_end
        open_end.claims += 1
        _file(open_end)

    def settled(self, request: AgentRequest) -> None:
        """Note that a request was placed or refused."""
        _, open_end = self._claims.pop(id(request), (None, None))
        if open_end is not None:
            open_end.claims -= 1
            if open_end.ledger in self._paths:
                _file(open_end)
        self.on_change()

    # ---- which rollouts have a history

    def is_new(self, ledger: Ledger) -> bool:
        """Return whether a rollout has not got a request yet."""
        return not self._digests_of[ledger]

    def with_digest(self, digest: bytes) -> Iterable[Ledger]:
        """Return the rollouts that got a body with this digest."""
        return self._by_digest.get(digest, ())

    def levels(self, request: AgentRequest, history: History) -> Iterator[list[_Node]]:
        """Yield the nodes from which a request may continue, in groups, longest first."""
        root = self._roots.get(request.frame)
        levels = [] if root is None else [[root]]
        for place, message in enumerate(history.messages if levels else ()):
            if not levels[-1]:
                break
            keys: list[Hashable] = [("said", history.coarse(place))]
            is_answer = message.get("role") == "assistant"
            if is_answer:
                keys += [("ours", key) for key in keys_read(message, request.dialect)]
            ways = [node.by_key.get(key, ()) for node in levels[-1] for key in keys]
            found = [child for way in ways for child in way]
            if is_answer and is_left_out(message):
                found += levels[-1]
            levels.append(list(dict.fromkeys(found)))
        seen: set[_Node] = set()
        for level in reversed(levels):
            yield [node for node in level if node not in seen and (node.free or node.taken)]
            seen.update(level)


def _keys_of(entry: BranchEntry) -> frozenset[Hashable] | None:
    """Return the keys under which a message may appear; None if clients may omit it."""
    if not entry.ours:
        return frozenset([("said", entry.coarse)])
    if entry.is_empty:
        return None
    return frozenset(("ours", key) for key in keys_returned(entry))


def _file(open_end: OpenEnd) -> None:
    """List an end among the free or the taken ends of its node, according to its state."""
    free, taken = open_end.node.free, open_end.node.taken
    into, out_of = (free, taken) if open_end.is_free else (taken, free)
    out_of.pop(open_end, None)
    into[open_end] = None


def find_repeated(
    histories: Histories, request: AgentRequest, digest: bytes, retried: bool
) -> Sequence[Ledger]:
    """Return the rollouts that a repeated request fits best; empty if it is new."""
    again = histories.with_digest(digest)
    fits = [(ledger.fits_again(request, digest, retried), ledger) for ledger in again]
    best = max((fit for fit, _ in fits), default=0)
    return [ledger for fit, ledger in fits if fit == best] if best else []


def find_open_ends(
    histories: Histories, request: AgentRequest, most: int | None = 1
) -> Sequence[OpenEnd]:
    """Return the ends from which a request may continue: the free ones with the longest history.

    If all of them are taken, requests have continued from each, and this one begins a branch.

    Args:
        histories: of the rollouts that may have sent the request.
        request: does not name a rollout.
        most: the most ends to return; None: all.
    """
    history = History(request.messages)
    exact: dict[Hashable, History] = {}
    fallback: tuple[int, OpenEnd] | None = None
    for level in histories.levels(request, history):
        for open_ends in ([node.free for node in level], [node.taken for node in level]):
            found: list[OpenEnd] = []
            for open_end in itertools.chain.from_iterable(open_ends):
                if open_end.branch.caller != open_end.ledger.callers.of(request):
                    continue
                joints = open_end.branch.writer.joints
                key = tuple(joints.items())
                if (said := exact.get(key)) is None:
                    said = exact[key] = History(request.messages, joints=joints)
                place = find_continuation([open_end.branch], request.frame, said, request.dialect)
                turns = 0 if place is None else place.found.turns
                if turns >= open_end.turns:
                    found.append(open_end)
                    if len(found) == most:
                        return found
                elif turns and (fallback is None or turns > fallback[0]):
                    fallback = turns, open_end
            if found:
                return found
    return [] if fallback is None else [fallback[1]]
