"""A run: its relay, its Spark, its queries; reload, commands and stops. Start with `run`."""

from databus.pipeline.running._control import ask
from databus.pipeline.running._dead_letters import OutputLetters, Replayed, outputs_with_letters
from databus.pipeline.running._published import relay_status_of, status_of
from databus.pipeline.running._rebuild import keeps_changes, rebuild, take_ledgers
from databus.pipeline.running._rename import Renamed, rename_output, rename_pipeline, rename_target
from databus.pipeline.running._run import run
from databus.pipeline.running._shown import PipelineFile, shown

__all__ = [
    "OutputLetters",
    "PipelineFile",
    "Renamed",
    "Replayed",
    "ask",
    "keeps_changes",
    "outputs_with_letters",
    "rebuild",
    "relay_status_of",
    "rename_output",
    "rename_pipeline",
    "rename_target",
    "run",
    "shown",
    "status_of",
    "take_ledgers",
]
