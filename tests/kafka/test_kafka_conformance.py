"""Topics pass the suite that every output passes."""

import pytest

from databus.testing import OUTPUT_CHECKS
from tests.kafka.support import KafkaHarness


@pytest.mark.parametrize("options", [{}, {"on_error": "dead_letter"}], ids=["halt", "dead_letter"])
@pytest.mark.parametrize("check", OUTPUT_CHECKS, ids=lambda check: check.__name__)
def test_topics_conform(kafka, check, options, tmp_path):
    check(KafkaHarness(kafka, tmp_path, **options))
