"""Topics for each test."""

import pytest

from databus.testing.servers import Kafka
from tests.kafka_source.support import Topics


@pytest.fixture
def topics(kafka: Kafka) -> Topics:
    return Topics(kafka)
