"""Depth first over the prefix tree: requests of one branch run together, the branch that most wait for goes first.

The weight of a node is the number of waiting requests whose match ends in it or below it. Heavier children go before
lighter ones, and what ends below a node before what ends in it: the longest matches of a branch come first. The rule of
SGLang's `dfs-weight`. Ties: the branch of the earlier arrival; within a node the longer match, then order of arrival.
Light branches would wait for as long as others are fed; `patience` bounds that, see `rtk_schedule.turns`.

A step costs O(m log m) in Python for the m nodes on the ways to where matches end.
"""

import numpy as np
from numpy.typing import NDArray

from rtk.plugin import Columns, Plugin, ScheduleContext, SchedulePolicy, TreeView, hookimpl
from rtk_schedule.turns import TurnOptions, Turns


class DfsWeight(SchedulePolicy):
    def __init__(self, options: TurnOptions) -> None:
        self._turns = Turns(options)

    def rank(self, columns: Columns, ctx: ScheduleContext) -> tuple[NDArray[np.generic], ...]:
        assert ctx.tree is not None, "the tree is required"
        place = _visited(ctx.tree)
        return self._turns.key(columns, ctx), place[ctx.tree.node], -columns.hit_len


def _visited(tree: TreeView) -> NDArray[np.int64]:
    """When each node is done, depth first."""
    count = len(tree.parent)
    parent = tree.parent.tolist()
    weight = np.bincount(tree.node, minlength=count).tolist()
    first = np.full(count, len(tree.node))
    np.minimum.at(first, tree.node, np.arange(len(tree.node)))
    earliest = first.tolist()
    children: list[list[int]] = [[] for _ in range(count + 1)]  # of every node; those of -1, the roots, at the end
    for node in reversed(range(count)):
        above = parent[node]
        children[above].append(node)
        if above >= 0:
            weight[above] += weight[node]
            earliest[above] = min(earliest[above], earliest[node])
    done: list[int] = []  # backwards: a node, then its children from the last to the first
    stack = [-1]
    while stack:
        node = stack.pop()
        done.append(node)
        stack += sorted(children[node], key=lambda child: (-weight[child], earliest[child]))
    place = np.zeros(count, dtype=np.int64)
    place[done[:0:-1]] = np.arange(count)
    return place


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="schedule",
            name="dfs-weight",
            summary="depth first over the prefix tree, the branch that most wait for first",
            target="rtk_schedule.dfs_weight:DfsWeight",
            options=TurnOptions,
            requires=frozenset({"prefix_match", "tree"}),
        )
    ]
