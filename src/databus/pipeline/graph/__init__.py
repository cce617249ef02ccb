"""A pipeline's file, as checked options and as a graph of plugins. Start with `PipelineConfig`, then `Graph`."""

from databus.pipeline.graph._config import (
    FilterTest,
    NodeSpec,
    PipelineConfig,
    Problem,
    RunSection,
    name_of,
    pipelines_in,
    read_pipeline,
    relay_at,
    state_folder,
    state_of,
)
from databus.pipeline.graph._graph import BRANCHES_MAX, Branch, Edge, Graph, Step, physicals_of
from databus.pipeline.graph._json_schema import pipeline_schema
from databus.pipeline.graph._options import Plugin, plugin, plugins
from databus.pipeline.graph._registry import NodeKind, plugin_class
from databus.pipeline.graph._render import edge_label, physical_edges, render
from databus.pipeline.graph._state import StateLock, holder_of, is_held, while_stopped

__all__ = [
    "BRANCHES_MAX",
    "Branch",
    "Edge",
    "FilterTest",
    "Graph",
    "NodeKind",
    "NodeSpec",
    "PipelineConfig",
    "Plugin",
    "Problem",
    "RunSection",
    "StateLock",
    "Step",
    "edge_label",
    "holder_of",
    "is_held",
    "name_of",
    "physical_edges",
    "physicals_of",
    "pipeline_schema",
    "pipelines_in",
    "plugin",
    "plugin_class",
    "plugins",
    "read_pipeline",
    "relay_at",
    "render",
    "state_folder",
    "state_of",
    "while_stopped",
]
