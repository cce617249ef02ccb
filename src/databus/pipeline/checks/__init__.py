"""The checks of a pipeline before anything runs. Start with `validate`."""

from databus.pipeline.checks._check_options import http_address, unguarded
from databus.pipeline.checks._check_renamed import check_renamed
from databus.pipeline.checks._check_sources import check_sources
from databus.pipeline.checks._validate import examined_pipeline, load_pipeline, validate

__all__ = [
    "check_renamed",
    "check_sources",
    "examined_pipeline",
    "http_address",
    "load_pipeline",
    "unguarded",
    "validate",
]
