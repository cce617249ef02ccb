"""Trying out a pipeline: tests of filters, and runs that write nothing. Start with `run_filter_tests`."""

from databus.pipeline.trying._dry_run import EdgeRates, dry, edge_name
from databus.pipeline.trying._filter_tests import (
    FilterTestResult,
    check_filter_tests,
    rows_given,
    run_filter_tests,
    through_spark,
)
from databus.pipeline.trying._spark_on_demand import STARTING_SPARK, spark_on_demand

__all__ = [
    "STARTING_SPARK",
    "EdgeRates",
    "FilterTestResult",
    "check_filter_tests",
    "dry",
    "edge_name",
    "rows_given",
    "run_filter_tests",
    "spark_on_demand",
    "through_spark",
]
