"""Settings that Kafka's client would refuse are refused before anything runs, without a broker and without values."""

import pytest

from databus.link import wrong_kafka_setting
from databus.pipeline import validate

GOOD = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "sasl_ssl", "ssl.ca.location": "/elsewhere/ca.pem"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, None),
        ({"auto.offset.reset": "earliest"}, None),  # of consumers, which producers take and leave
        ({"linger.ms": "${LINGER}"}, None),
        ({"compresion.type": "zstd"}, 'No such configuration property: "compresion.type"'),
        ({"compression.type": "sekret"}, 'Invalid value for configuration property "compression.codec"'),
        ({"linger.ms": "soon"}, 'Invalid value for configuration property "queue.buffering.max.ms"'),
        ({"error_cb": "print"}, "not to be set in a file: expected error_cb property as a callable function"),
        ({"key.serializer": "StringSerializer"}, 'No such configuration property: "key.serializer"'),
    ],
)
def test_the_client_itself_says_what_is_wrong_and_no_value_is_repeated(settings, said):
    assert wrong_kafka_setting({**GOOD, **settings}) == said


def test_validate_names_the_line_of_a_misspelt_setting(tmp_path):
    path = tmp_path / "databus.yml"
    path.write_text(
        "name: p\nsources: {gen: {type: mock, transactions_total: 1}}\ninputs: {gen: {type: databus}}\n"
        "outputs:\n  k:\n    type: kafka\n    from: gen\n"
        "    kafka: {bootstrap.servers: '127.0.0.1:1', linger: 5}\n"
    )
    (problem,) = validate(path)
    assert (problem.path, problem.line) == ("outputs.k.kafka", 8)
    assert 'No such configuration property: "linger"' in problem.message
