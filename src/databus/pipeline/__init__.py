"""One YAML file to a graph to streaming queries. Start with `databus.pipeline._contract`."""

from databus.pipeline._compare import compare
from databus.pipeline._compare_found import Comparison, TableDifference
from databus.pipeline._compare_source import read_source
from databus.pipeline._config import PipelineConfig, Problem, relay_at, state_of
from databus.pipeline._contract import Filter, Input, RunContext, Shape
from databus.pipeline._control import ask
from databus.pipeline._dead_letters import OutputLetters, Replayed, outputs_with_letters
from databus.pipeline._dry_run import EdgeRates, edge_name
from databus.pipeline._filter_tests import FilterTestResult, run_filter_tests
from databus.pipeline._graph import Graph
from databus.pipeline._journal import read_journal
from databus.pipeline._json_schema import pipeline_schema
from databus.pipeline._node_config import FilterConfig, InputConfig, NodeConfig, OutputConfig
from databus.pipeline._output_contract import Delivery, DirectOutput, Output, OutputContext, SparkOutput
from databus.pipeline._plugins import Plugin, plugin, plugins
from databus.pipeline._positions import OutputPositions, positions_of
from databus.pipeline._progress import unwell, worst_backlogs
from databus.pipeline._published import relay_status_of, status_of
from databus.pipeline._rebuild import keeps_changes, rebuild
from databus.pipeline._reference import options_markdown, reference_markdown
from databus.pipeline._render import render
from databus.pipeline._run import run
from databus.pipeline._state import holder_of
from databus.pipeline._stopping import STOP_S_MAX
from databus.pipeline._validate import load_pipeline, validate
from databus.tasks import ChangeBatch, KeyChoice, Restage, TableChoice, TableControl, TableRows, decode_frames

__all__ = [
    "STOP_S_MAX",
    "ChangeBatch",
    "Comparison",
    "Delivery",
    "DirectOutput",
    "EdgeRates",
    "Filter",
    "FilterConfig",
    "FilterTestResult",
    "Graph",
    "Input",
    "InputConfig",
    "KeyChoice",
    "NodeConfig",
    "Output",
    "OutputConfig",
    "OutputContext",
    "OutputLetters",
    "OutputPositions",
    "PipelineConfig",
    "Plugin",
    "Problem",
    "Replayed",
    "Restage",
    "RunContext",
    "Shape",
    "SparkOutput",
    "TableChoice",
    "TableControl",
    "TableDifference",
    "TableRows",
    "ask",
    "compare",
    "decode_frames",
    "edge_name",
    "holder_of",
    "keeps_changes",
    "load_pipeline",
    "options_markdown",
    "outputs_with_letters",
    "pipeline_schema",
    "plugin",
    "plugins",
    "positions_of",
    "read_journal",
    "read_source",
    "rebuild",
    "reference_markdown",
    "relay_at",
    "relay_status_of",
    "render",
    "run",
    "run_filter_tests",
    "state_of",
    "status_of",
    "unwell",
    "validate",
    "worst_backlogs",
]
