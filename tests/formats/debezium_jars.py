"""The jars of Debezium's core and of Kafka Connect, kept where the tests' servers are."""

from typing import Final

from databus.testing.servers._fetch import kept
from databus.testing.servers._maven import fetch_jars

_COORDINATES: Final = (
    "io.debezium:debezium-core:3.0.8.Final",
    "org.apache.kafka:connect-json:3.9.1",
    "org.apache.kafka:connect-transforms:3.9.1",
    "org.slf4j:slf4j-nop:1.7.36",
)
_SHA256: Final = "7f2e64dc757ea6a55c2eed3e505c0beeaf2ffead7656aecca2b75bc16ae2619c"


def debezium_jars() -> str:
    """As a Java class path. Raises `ServerMissing`."""
    folder = kept("debezium-core-3.0.8", lambda target: fetch_jars(_COORDINATES, _SHA256, target))
    return ":".join(str(jar) for jar in sorted(folder.glob("*.jar")))
