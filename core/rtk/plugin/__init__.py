"""What plugin authors import: the contracts, one class per kind, and the description a plugin gives of itself."""

from rtk.plugin.attention import (
    AttentionBackend,
    BatchView,
    BufferSpec,
    Capabilities,
    KVLayout,
    KVShape,
    LayerCall,
    SharedRun,
    Workspace,
)
from rtk.plugin.eviction import EvictionPolicy, NodeView
from rtk.plugin.grammar import GrammarBackend, Judgement, Matcher, Reason, Spec, Vocabulary
from rtk.plugin.info import API_VERSION, Options, Plugin
from rtk.plugin.observer import Observer, RequestReport, StepReport
from rtk.plugin.schedule import Columns, Progress, RequestView, ScheduleContext, SchedulePolicy, TreeView
from rtk.plugin.spec import hookimpl
from rtk.plugin.storage import Storage

__all__ = [
    "API_VERSION",
    "AttentionBackend",
    "BatchView",
    "BufferSpec",
    "Capabilities",
    "Columns",
    "EvictionPolicy",
    "GrammarBackend",
    "Judgement",
    "KVLayout",
    "KVShape",
    "LayerCall",
    "Matcher",
    "NodeView",
    "Observer",
    "Options",
    "Plugin",
    "Progress",
    "Reason",
    "RequestReport",
    "RequestView",
    "ScheduleContext",
    "SchedulePolicy",
    "SharedRun",
    "Spec",
    "StepReport",
    "Storage",
    "TreeView",
    "Vocabulary",
    "Workspace",
    "hookimpl",
]
