"""Topics pass the suite that every output passes."""

import pytest

from databus.testing import OUTPUT_CHECKS
from tests.kafka.support import KafkaHarness

DIFFER = ("check_parts_of_a_transaction", "check_repeats", "check_second_writer", "check_values")
"""With dead letters each message is asked for by itself; these meet refusals, parts, and a fence."""


def cases():
    for check in OUTPUT_CHECKS:
        yield pytest.param(check, {}, id=f"{check.__name__}-halt")
        marks = [] if check.__name__ in DIFFER else [pytest.mark.nightly]
        yield pytest.param(check, {"on_error": "dead_letter"}, id=f"{check.__name__}-dead_letter", marks=marks)


@pytest.mark.parametrize(("check", "options"), list(cases()))
def test_topics_conform(kafka, check, options, tmp_path):
    check(KafkaHarness(kafka, tmp_path, **options))
