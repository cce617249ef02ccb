"""How many tasks a session's master runs at once, as far as that can be known before any has run."""

import time
from typing import Any, Final

from pyspark.sql import SparkSession

from databus.spark._private import executors_of
from databus.spark._session import is_local

_WAIT_S: Final = 10.0
_ASK_S: Final = 0.1  # Spark does not tell Python when an executor has come
_ENDLESS: Final = 2**31 - 1  # what Spark itself takes where nobody has set a most


def slots_of(session: SparkSession) -> int:
    """The tasks that may read at once, one at least.

    A local master's cores also run the relay and the driver, so half of them are counted. On a cluster it is what the
    settings promise, or what executors have registered by now, whichever is more; of executors that come and go, the
    most. Waits up to ten seconds for a first executor where the settings say nothing.
    """
    context: Any = session.sparkContext
    cores = int(context.defaultParallelism)
    if is_local(context.master):
        return max(cores // 2, 1)
    conf = context.getConf()
    cores_a_task = max(int(conf.get("spark.task.cpus", "1")), 1)
    promised = _promised_cores(conf)
    if promised is None:
        _wait_for_an_executor(context)
        cores = int(context.defaultParallelism)
    return max(max(promised or 0, cores) // cores_a_task, 1)


def _promised_cores(conf: Any) -> int | None:
    """Of all executors together, None if the settings leave it open."""
    if conf.get("spark.cores.max") is not None:
        return int(conf.get("spark.cores.max"))
    is_dynamic = conf.get("spark.dynamicAllocation.enabled", "false").strip().lower() == "true"
    most = "spark.dynamicAllocation.maxExecutors" if is_dynamic else "spark.executor.instances"
    executors = int(conf.get(most, str(_ENDLESS) if is_dynamic else "0"))
    if executors == 0:
        return None
    return min(executors * int(conf.get("spark.executor.cores", "1")), _ENDLESS)


def _wait_for_an_executor(context: Any) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not executors_of(context):
        if time.monotonic() > deadline:
            return
        time.sleep(_ASK_S)
