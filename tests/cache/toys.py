"""Small stand-ins for what will enter through the seams of the cache, and a policy with a memory."""

from rtk.cache.key import unpack
from rtk.plugin import EvictionPolicy


class Gdsf(EvictionPolicy):
    """Greedy dual, size and frequency: worth is fixed when a node is told of, on top of the last victim's worth.

    The upper half of a split is never told of: its worth rises with every eviction of others.
    """

    facts = frozenset({"size"})

    def __init__(self):
        self.inflation = 0.0
        self.worth = {}

    def on_insert(self, node):
        self.worth[node.id] = self.inflation + (1 + node.hits) * (node.start + node.size)

    on_hit = on_insert

    def on_evict(self, node, key):
        self.inflation = max(self.inflation, key[0])
        self.worth.pop(node.id, None)

    def key(self, node):
        return (self.worth.get(node.id, self.inflation) / node.size,)


class Rising(EvictionPolicy):
    """Every eviction makes the others of its kind more precious: keys grow by what happens to other nodes."""

    facts = frozenset({"size", "last_use"})

    def __init__(self):
        self.gone = [0] * 3

    def on_evict(self, node, key):
        self.gone[node.size % 3] += 1

    def key(self, node):
        return (node.last_use + 2 * self.gone[node.size % 3],)


class Counted:
    """Hands out handles and knows which are in use: each is given back, or used up by a split, exactly once."""

    def __init__(self):
        self.live = {}
        self.made = 0

    def make(self, content):
        self.made += 1
        self.live[self.made] = content
        return self.made

    def free(self, handle):
        del self.live[handle]


class Recurrent(Counted):
    """The state of recurrent layers: it exists at the ends of some nodes only."""

    name = "recurrent"

    def usable(self, path):
        length = best = 0
        for state, used, size in path:
            length += used
            if state is not None and used == size:
                best = length
        return best

    def split(self, state, at, size):
        return None, state


class Window(Counted):
    """K/V of sliding-window layers: one entry for each token of a node, or nothing."""

    name = "window"

    def __init__(self, window):
        super().__init__()
        self.window = window

    def usable(self, path):
        length = run = best = 0
        for state, used, _ in path:
            length += used
            run = 0 if state is None else run + used
            if run >= min(self.window, length):
                best = length
        return best

    def split(self, state, at, size):
        tokens = self.live.pop(state)
        assert len(tokens) == size
        return self.make(tokens[:at]), self.make(tokens[at:])


class HostTier(Counted):
    """Copies in host memory: room for so many tokens."""

    def __init__(self, capacity):
        super().__init__()
        self.capacity = capacity

    @property
    def tokens(self):
        return sum(map(len, self.live.values()))

    def store(self, node):
        assert len(node.slots) == node.size, "nothing is on the device any more"
        if self.tokens + node.size > self.capacity:
            return None
        return self.make(unpack(node.tokens))

    def split(self, handle, at, size):
        copy = self.live.pop(handle)
        assert len(copy) == size
        return self.make(copy[:at]), self.make(copy[at:])

    def drop(self, handle):
        self.free(handle)
