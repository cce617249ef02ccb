"""What Spark says in its own words, as our errors."""

import errno
import os
import traceback

import pytest

from databus.core import DatabusError, DiskFull, ServiceUnavailable, UnrepresentableValue
from databus.sinks.kafka._cluster import ProducerFenced, TooLarge
from databus.spark import error_of

SAID = (
    "[STREAM_FAILED] Query [id = 728f2097-8440-4e28-a09a-6f12db3c9b99, runId = a8d5b96a-0210-457a-ae53-68b46a90d280] "
    "terminated with exception: java.io.IOException: {} SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: a"
)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_checkpoint_that_finds_no_room_is_a_full_disk_which_is_waited_for(number: int) -> None:
    said = error_of(RuntimeError(SAID.format(os.strerror(number))))
    assert isinstance(said, DiskFull)
    assert os.strerror(number) in str(said)


def test_another_error_of_input_or_output_is_no_full_disk() -> None:
    assert error_of(RuntimeError(SAID.format("Input/output error"))) is None


class _PluginDown(ServiceUnavailable):
    """As a plugin has them."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UnrepresentableValue("filters.short: told"), UnrepresentableValue),
        (TooLarge("outputs.a: told"), UnrepresentableValue),
        (ProducerFenced("Kafka at x:1: told"), ServiceUnavailable),
        (_PluginDown("told"), ServiceUnavailable),
    ],
)
def test_an_error_of_a_task_says_whether_the_query_may_be_tried_again(error: DatabusError, kind: type) -> None:
    """Spark tells the driver by text alone."""
    said = "".join(traceback.format_exception(error))
    found = error_of(RuntimeError(f"Job aborted: PythonException: \n{said}\n\tat org.apache.spark: 17"))
    assert (type(found), str(found)) == (kind, str(error))


def test_a_java_process_that_is_gone_needs_no_traceback_however_late_that_is_met() -> None:
    """py4j meets it once in the connection that it had, and again in those that it tries to make."""
    from py4j.protocol import Py4JNetworkError

    late, again = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), ConnectionResetError()
    assert error_of(late) is None
    late.__context__, again.__context__ = again, Py4JNetworkError("Answer from Java side is empty")
    assert str(error_of(late)) == "Spark's Java process does not answer"
