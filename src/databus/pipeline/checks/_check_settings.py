"""What can be known to be wrong in `spark.settings` without Spark, which takes any name and says nothing."""

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Final

from databus.pipeline.graph import Problem

_OURS: Final[Mapping[str, str]] = {"spark.master": "spark.master of this file", "spark.app.name": "the pipeline's name"}
_BYTES: Final = re.compile(r"[0-9]+[kmgtp]?b?", re.IGNORECASE)
_NUMBER: Final = re.compile(r"[0-9]+")
_NEAR: Final = 0.9

_SETTINGS: Final[Mapping[str, re.Pattern[str] | None]] = {
    **dict.fromkeys(
        (
            "spark.driver.maxResultSize",
            "spark.driver.memory",
            "spark.driver.memoryOverhead",
            "spark.executor.memory",
            "spark.executor.memoryOverhead",
            "spark.executor.pyspark.memory",
            "spark.memory.offHeap.size",
        ),
        _BYTES,
    ),
    **dict.fromkeys(
        (
            "spark.cores.max",
            "spark.default.parallelism",
            "spark.driver.cores",
            "spark.driver.port",
            "spark.dynamicAllocation.initialExecutors",
            "spark.dynamicAllocation.maxExecutors",
            "spark.dynamicAllocation.minExecutors",
            "spark.executor.cores",
            "spark.executor.instances",
            "spark.sql.execution.arrow.maxRecordsPerBatch",
            "spark.sql.shuffle.partitions",
            "spark.task.cpus",
            "spark.task.maxFailures",
        ),
        _NUMBER,
    ),
    **dict.fromkeys(
        (
            "spark.authenticate",
            "spark.driver.bindAddress",
            "spark.driver.extraClassPath",
            "spark.driver.extraJavaOptions",
            "spark.driver.host",
            "spark.dynamicAllocation.enabled",
            "spark.eventLog.dir",
            "spark.eventLog.enabled",
            "spark.executor.extraClassPath",
            "spark.executor.extraJavaOptions",
            "spark.executor.heartbeatInterval",
            "spark.jars",
            "spark.jars.ivy",
            "spark.jars.packages",
            "spark.jars.repositories",
            "spark.kubernetes.container.image",
            "spark.kubernetes.namespace",
            "spark.local.dir",
            "spark.locality.wait",
            "spark.memory.fraction",
            "spark.memory.offHeap.enabled",
            "spark.memory.storageFraction",
            "spark.metrics.namespace",
            "spark.network.timeout",
            "spark.pyspark.driver.python",
            "spark.pyspark.python",
            "spark.python.worker.memory",
            "spark.python.worker.reuse",
            "spark.scheduler.mode",
            "spark.serializer",
            "spark.sql.adaptive.enabled",
            "spark.sql.execution.arrow.pyspark.enabled",
            "spark.sql.extensions",
            "spark.sql.session.timeZone",
            "spark.sql.streaming.metricsEnabled",
            "spark.sql.streaming.minBatchesToRetain",
            "spark.sql.streaming.noDataMicroBatches.enabled",
            "spark.sql.streaming.stopTimeout",
            "spark.sql.warehouse.dir",
            "spark.submit.deployMode",
            "spark.submit.pyFiles",
            "spark.ui.enabled",
            "spark.ui.port",
            "spark.ui.showConsoleProgress",
            "spark.yarn.queue",
        ),
        None,
    ),
}
"""Settings that pipelines are given, and what their values look like. Spark has a thousand others."""


def check_settings(settings: Mapping[str, str]) -> Iterator[Problem]:
    """Names that Spark passes over, names that are nearly those of settings, and values that are none."""
    for name, value in settings.items():
        where = f"spark.settings.{name}"
        near = difflib.get_close_matches(name, _SETTINGS, 1, _NEAR)
        if name in _OURS:
            yield Problem(where, f"comes from {_OURS[name]}; leave it out here")
        elif not name.startswith("spark."):
            likely = difflib.get_close_matches(f"spark.{name}", _SETTINGS, 1, _NEAR)
            hint = f'; did you mean "{likely[0]}"?' if likely else ""
            yield Problem(where, f"Spark passes over settings whose names do not begin with `spark.`{hint}")
        elif near and near[0] != name and name not in _SETTINGS:
            yield Problem(where, f'did you mean "{near[0]}"? Spark takes any name and says nothing', is_warning=True)
        pattern = _SETTINGS.get(name)
        if pattern is not None and not pattern.fullmatch(value):
            kind = "a whole number" if pattern is _NUMBER else "a size, such as 512m or 2g"
            yield Problem(where, f'"{value}" is not {kind}')
