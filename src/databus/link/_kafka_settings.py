"""Settings of Kafka's client, looked at without a broker."""

import importlib.util
from collections.abc import Iterable, Mapping
from typing import Final

_LAST: Final = "databus.last"


def wrong_kafka_setting(settings: Mapping[str, str]) -> str | None:
    """What the client says of the first setting that it does not know, or whose value it does not take.

    None without such a one, or where the client is not installed. Files that settings name are not looked for, for
    they may be where tasks run alone. No client is made, and nothing is connected: settings are taken in their order,
    and behind these stands one that no client knows.

    >>> wrong_kafka_setting({"bootstrap.servers": "kafka:9092", "linger.ms": "5"})
    >>> wrong_kafka_setting({"bootstrap.servers": "kafka:9092", "linger": "5"})
    'No such configuration property: "linger"'
    """
    if importlib.util.find_spec("confluent_kafka") is None:
        return None
    from confluent_kafka import KafkaException, Producer

    unset = [name for name, value in settings.items() if "${" in value]  # it is told of by itself
    known = {name: value for name, value in settings.items() if name not in unset}
    try:
        Producer({**known, _LAST: ""})
    except KafkaException as error:
        message = str(error.args[0].str())
        return None if _LAST in message else _without_values(message, known.values())
    except (TypeError, AttributeError) as error:  # it wants a function there, or an object
        return f"not to be set in a file: {error}"
    raise AssertionError(f"Kafka's client knows a setting called {_LAST}")


def _without_values(message: str, values: Iterable[str]) -> str:
    """Any may be a secret that stands in the wrong place."""
    for value in values:
        message = message.replace(f' "{value}"', "")
    return message
