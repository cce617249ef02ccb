"""Outputs: where changes end up. Start with `DeltaOutput`."""

from databus.pipeline.outputs._delta import DeltaConfig, DeltaOutput

__all__ = ["DeltaConfig", "DeltaOutput"]
