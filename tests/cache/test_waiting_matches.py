"""What the waiting queue knows of its requests, against a look-up of each after every change of the tree."""

import random
from itertools import count

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from small_tree import Tree
from test_tree_machine import TreeMachine, sequences, spaces
from toys import Counted, HostTier

from rtk.cache.key import DEFAULT_NAMESPACE, Key, pack, unpack
from rtk.plugin.guard import GuardedSchedule, Health
from rtk.plugin.info import CAPABILITIES
from rtk.plugin.schedule import ScheduleContext, SchedulePolicy
from rtk.schedule import waiting_matches
from rtk.schedule.params import SamplingParams
from rtk.schedule.queue import WaitingQueue
from rtk.schedule.request import Request
from rtk.schedule.waiting_matches import WaitingMatches


class Looks(SchedulePolicy):
    """Keeps what it was shown."""

    in_batch_len = 18

    def rank(self, columns, ctx):
        self.columns, self.tree = columns, ctx.tree
        return (columns.id,)


class WaitingMachine(TreeMachine):
    @property
    def queue(self):
        if not hasattr(self, "_queue"):
            self.policy_seen, self.seen_health, self.ids = Looks(), Health(), count(1)
            guarded = GuardedSchedule(self.policy_seen, "looks", self.seen_health)
            self._queue = WaitingQueue(guarded, self.cache, requires=frozenset(CAPABILITIES))
            self.requests = []
        return self._queue

    @rule(space=spaces, some=st.lists(sequences, min_size=1, max_size=4), routing_key=st.sampled_from(["", "a", "b"]))
    def arrive(self, space, some, routing_key):
        queue = self.queue
        for tokens in some:
            one = Request(
                rid="",
                id=next(self.ids),
                prompt_len=len(tokens),
                tokens=bytearray(pack(tokens)),
                params=SamplingParams(),
                key=Key(space, pack(tokens)),
                priority=0,
                max_new_tokens=4,
                seed=0,
                arrival_s=0.0,
                prefilled_at_arrival=0,
                stop_token_ids=frozenset(),
                tenant=routing_key,
                routing_key=routing_key,
            )
            queue.add(one)
            self.requests.append(one)

    @rule(which=st.integers(0, 9), comes_back=st.booleans(), output=st.lists(st.integers(0, 1), max_size=20))
    def start(self, which, comes_back, output):
        queue = self.queue
        if which >= len(self.requests):
            return
        one = self.requests.pop(which)
        queue.remove(one)
        if comes_back:  # retracted, with what it has generated since
            for token in output:
                one.append(token)
            one.retractions += 1
            one.fill_len = one.length
            one.key = Key(one.key.namespace, bytes(one.tokens))
            queue.put_back(one)
            self.requests.append(one)

    @invariant()
    def the_queue_is_right(self):
        if not hasattr(self, "_queue"):
            return
        queue, looks = self.queue, self.policy_seen
        inside = sorted(self.requests, key=lambda one: (not one.retractions, one.id))
        assert list(queue) == inside
        assert len(queue) == len(inside)
        running = [inside[0]] * 3 if inside else []
        ctx = ScheduleContext(now=0.0, rng=random.Random(0), running=0)
        ranked = list(queue.ranked(ctx, running))
        assert ranked == sorted(inside, key=lambda one: one.id)
        assert not self.seen_health.degraded
        if not inside:
            return
        columns = looks.columns
        assert columns.id.tolist() == [one.id for one in inside]
        matches = [self.cache.peek(one.key, limit=one.fill_len - 1) for one in inside]
        assert columns.matched_len.tolist() == [match.length for match in matches]
        assert columns.stored_len.tolist() == [match.stored for match in matches]
        work = [one.fill_len - match.length - match.stored for one, match in zip(inside, matches, strict=True)]
        assert columns.uncached_len.tolist() == work
        first = [(one.key.namespace, *unpack(one.key.tokens)[:18]) for one in inside]
        shares = [len(tokens) == 19 and tokens in first[:i] for i, tokens in enumerate(first)]
        assert columns.shares_prefix.tolist() == shares
        key = inside[0].routing_key
        assert columns.running_with_key.tolist() == [3 * (one.routing_key == key != "") for one in inside]
        self.view_is_right(inside, looks.tree)

    def view_is_right(self, inside, tree):
        parent, size = tree.parent.tolist(), tree.size.tolist()
        assert all(above < i for i, above in enumerate(parent))
        assert all((above < 0) == (tokens == 0) for above, tokens in zip(parent, size, strict=True))
        assert parent.count(-1) == len({one.key.namespace for one in inside})
        for one, at in zip(inside, tree.node.tolist(), strict=True):
            end = self.on_the_way_down(one)
            sizes = []
            while at >= 0:
                sizes.append(size[at])
                at = parent[at]
            assert sum(sizes[1:]) < end <= sum(sizes) or sum(sizes) == end == 0

    def on_the_way_down(self, one):
        """Tokens of a request that are in the tree, on the device or not."""
        pages = self.prefixes(one.key.namespace, unpack(one.key.tokens), one.fill_len - 1)
        known = self.pages.keys() | self.stored
        return next((i for i, page in enumerate(pages) if page not in known), len(pages)) * self.page

    def teardown(self):
        """Nothing is kept of requests that wait no more."""
        if not hasattr(self, "_queue"):
            return
        for one in self.requests:
            self.queue.remove(one)
        matches, shared = self.queue._matches, self.queue._shared
        assert not (matches._spots or matches._waiters or shared._groups or shared._of)
        assert len(matches._numbers) == matches._spots_made
        assert not self.queue._keys._numbers and len(self.queue) == len(self.queue._columns) == 0


class Everywhere(Counted):
    """A state that serves a node as a whole, and whose halves serve the halves."""

    name = "everywhere"

    def usable(self, path):
        length = 0
        for state, used, size in path:
            if state is None or used < size:
                break
            length += used
        return length

    def split(self, state, at, size):
        self.free(state)
        return self.make(None), self.make(None)


def watched(**settings):
    """A small tree, and the length and stored length of a request that waits, as the tree's watcher has them."""
    tree = Tree(page_size=4, **settings)
    matches = WaitingMatches(tree.cache)
    matches.add(7, Key(DEFAULT_NAMESPACE, pack([1] * 12)), 11)
    last = []

    def now():
        places, *facts, _ = matches.changes()
        if places:
            last[:] = [fact[0] for fact in facts]
        match = tree.peek([1] * 12, limit=11)
        assert last == [match.length, match.stored]
        return tuple(last)

    return tree, now


def test_what_comes_back_from_the_tier_is_matched_again():
    tree, now = watched(tier=HostTier(64))
    assert now() == (0, 0)
    tree.insert([1] * 8)
    assert now() == (8, 0)
    tree.cache.evict(8)
    assert now() == (0, 8)
    tree.insert([1] * 4)
    assert now() == (4, 4)
    tree.insert([1] * 8)
    assert now() == (8, 0)
    tree.cache.flush()
    assert now() == (0, 0)


def test_a_split_may_make_more_of_a_component_usable():
    component = Everywhere()
    tree, now = watched(components=(component,))
    lease = tree.acquire([])
    tree.fill(lease, [1] * 8 + [2] * 8)
    assert now() == (0, 0)
    lease.attach("everywhere", component.make(None))
    assert now() == (0, 0)  # the match ends inside the node
    other = tree.acquire([])
    tree.fill(other, [1] * 4)
    assert now() == (4, 0)
    lease.release()
    other.release()
    tree.cache.evict(12)
    assert now() == (4, 0)
    tree.cache.evict(4)
    assert now() == (0, 0)


def test_the_view_of_a_deep_tree_looks_at_each_node_once_or_twice(monkeypatch):
    steps, way, depth = [], waiting_matches._way, 60

    def counted(where, node):
        for step in way(where, node):
            steps.append(step)
            yield step

    monkeypatch.setattr(waiting_matches, "_way", counted)
    tree = Tree(pool=4096)
    matches = WaitingMatches(tree.cache)
    for length in range(1, depth + 1):
        tree.insert([*range(length), 1000])
        matches.add(length, Key(DEFAULT_NAMESPACE, pack([*range(length), 2000])), length)
    spots = np.array(matches.changes()[3])
    for spots_of in (matches._spots, dict(reversed(matches._spots.items()))):  # from above, and from below
        matches._spots, steps[:] = spots_of, []
        view = matches.tree(spots)
        assert len(view.parent) == depth + 1  # with the root
        assert sorted(np.bincount(view.node, minlength=depth + 1)) == [0] + [1] * depth
        assert len(steps) <= 2 * depth + 1


TestWaiting = WaitingMachine.TestCase
TestWaiting.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
