"""Options of the client go by Kafka's names; those of ours are refused, and secrets are shown nowhere."""

import pytest

from databus.core import ConfigError
from databus.sources import open_source, parse_source

BASE = {"type": "kafka", "kafka": {"bootstrap.servers": "127.0.0.1:1"}, "topics": ["a"]}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kafka": {}}, "bootstrap.servers: missing"),
        ({"kafka": {"bootstrap.servers": "b:1", "group.id": "x"}}, "consumer_name"),
        ({"kafka": {"bootstrap.servers": "b:1", "isolation.level": "x"}}, "use `isolation_level`"),
        ({"kafka": {"bootstrap.servers": "b:1", "plugin.library.paths": "x"}}, "cannot be set"),
        ({"kafka": {"bootstrap.servers": "b:1", "no.such": 1}}, 'No such configuration property: "no.such"'),
        ({"topics": []}, "topics"),
        ({"start": "yesterday"}, "none of earliest, latest"),
        ({"start": {"b": {0: 1}}}, "not among `topics`"),
    ],
)
def test_what_is_wrong_is_said_by_its_path(options, said):
    with pytest.raises(ConfigError, match=said):
        parse_source({**BASE, **options}, "sources.events")


def test_secrets_stand_in_no_error_and_no_printed_configuration():
    secret = "shown-nowhere"  # noqa: S105 - of tests
    options = {
        "bootstrap.servers": "127.0.0.1:1",
        "sasl.password": secret,
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": "/no/such/file",
    }
    config = parse_source({**BASE, "kafka": options}, "sources.events")
    assert secret not in repr(config)
    assert secret not in config.model_dump_json()
    with pytest.raises(ConfigError, match="No provider for SASL mechanism") as error:
        open_source("events", config).identify()
    assert secret not in str(error.value)
    with pytest.raises(ConfigError) as error:
        parse_source({**BASE, "kafka": {"sasl.password": secret}, "topics": 5}, "sources.events")
    assert secret not in str(error.value)


@pytest.mark.parametrize(
    ("topics", "read"),
    [(["*"], ["orders"]), (["*", "databus-control"], ["orders", "databus-control"]), (["__*"], []), (["__x"], ["__x"])],
)
def test_patterns_select_no_topic_that_keeps_positions(topics, read):
    """A mirror of them is written to whenever it is: two that mirror each other would never rest."""
    config = parse_source({**BASE, "topics": topics}, "sources.events")
    assert [each for each in ("orders", "databus-control", "__x") if config.reads(each)] == read
