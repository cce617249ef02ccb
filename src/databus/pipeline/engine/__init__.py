"""Batches: from ranges of the relay's log to the rows of an output's target. Start with `QueryThread`."""

from databus.pipeline.engine._batch_event import inputs_hash
from databus.pipeline.engine._begin import begin
from databus.pipeline.engine._engine import Engine, SparkEngine
from databus.pipeline.engine._handle import LEDGERS, Brought, OutputHandle, ledger_path, options_hash
from databus.pipeline.engine._ledger import Ledger
from databus.pipeline.engine._offsets import Offsets
from databus.pipeline.engine._plan import OutputFeed, QueryPlan, Way, plan_queries, way_of, why_stopped
from databus.pipeline.engine._positions import OutputPositions, positions_of, with_positions
from databus.pipeline.engine._query import QueryThread, RunSettings, can_throttle, check_options
from databus.pipeline.engine._query_filters import into_output, named
from databus.pipeline.engine._typed_steps import TypedSteps, analysis_error, check_keeps, no_column

__all__ = [
    "LEDGERS",
    "Brought",
    "Engine",
    "Ledger",
    "Offsets",
    "OutputFeed",
    "OutputHandle",
    "OutputPositions",
    "QueryPlan",
    "QueryThread",
    "RunSettings",
    "SparkEngine",
    "TypedSteps",
    "Way",
    "analysis_error",
    "begin",
    "can_throttle",
    "check_keeps",
    "check_options",
    "inputs_hash",
    "into_output",
    "ledger_path",
    "named",
    "no_column",
    "options_hash",
    "plan_queries",
    "positions_of",
    "way_of",
    "why_stopped",
    "with_positions",
]
