"""Brokers that cannot be reached, as by wrong settings: what the client met is said."""

import pytest

from databus.core import ServiceUnavailable
from databus.sinks.kafka import Cluster, topics_of
from tests.kafka_source.support import eventually


@pytest.mark.parametrize(("protocol", "met"), [("SSL", "ssl://"), ("SASL_PLAINTEXT", "sasl_plaintext://")])
def test_what_a_client_met_on_its_way_to_brokers_is_said_where_none_answers(kafka, protocol: str, met: str):
    """Such settings are waited with for ever, as brokers that are down are: nothing else would tell them apart."""
    settings = {
        "bootstrap.servers": kafka.bootstrap,
        "security.protocol": protocol,
        "sasl.mechanism": "PLAIN",
        "sasl.username": "somebody",
        "sasl.password": "wrong",
    }
    cluster = Cluster(tuple(settings.items()), request_ms_max=1_000)

    def is_said() -> bool:
        with pytest.raises(ServiceUnavailable) as error:
            topics_of(cluster).ids(["any"], [])
        return met in str(error.value) and "security.protocol" in str(error.value)

    eventually(is_said)


def test_a_client_that_nobody_has_answered_is_not_asked_again():
    """After a broker's end one may find no other broker for a minute, and a new one at once."""
    nobody = (("bootstrap.servers", "127.0.0.1:1"),)
    cluster = Cluster(nobody, request_ms_max=100)
    before = cluster.admin()
    with pytest.raises(ServiceUnavailable):
        topics_of(cluster).ids(["any"], [])
    assert cluster.admin() is not before
