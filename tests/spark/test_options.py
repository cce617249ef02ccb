"""A wrong option is an error that names the option and what it might have been."""

import pytest

from databus.core import ConfigError
from databus.spark._options import parse_options

GOOD = {"relay": "http://127.0.0.1:11115", "shape": "typed", "sources": "main.orders"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"relay": None}, r'option "relay": missing'),
        ({"shape": None}, r'option "shape": missing.*`frames`'),
        ({"relay": "127.0.0.1:11115"}, r'option "relay".*127\.0\.0\.1'),
        ({"relay": "http://a:1,b:1"}, r'option "relay"'),
        ({"shape": "typd"}, r'option "shape".*typd'),
        ({"maxRowsPerTriger": "5"}, r'option "maxRowsPerTriger".*did you mean "maxRowsPerTrigger"'),
        ({"maxRowsPerTrigger": "0"}, r'option "maxRowsPerTrigger"'),
        ({"maxRowsPerTrigger": "many"}, r'option "maxRowsPerTrigger".*many'),
        ({"partitions": "0"}, r'option "partitions"'),
        ({"token": "abc"}, r'option "token".*token_file'),
        ({"startingVersion": "-1"}, r'option "startingVersion".*-1'),
        ({"startingVersion": "erliest"}, r'option "startingVersion".*earliest'),
        ({"startingTimestamp": "yesterday"}, r'option "startingTimestamp".*yesterday'),
        ({"startingCheckpoint": '{"v": 2}'}, r'option "startingCheckpoint".*version 1'),
        ({"startingVersion": "1", "startingTimestamp": "0"}, "startingVersion and startingTimestamp"),
        ({"startingVersion": "9", "endingVersion": "8"}, "endingVersion 8 is below startingVersion 9"),
        ({"startingVersion": "9", "endingVersion": "0"}, "endingVersion 0 is below startingVersion 9"),
        ({"sources": "a,b"}, "one table"),
        ({"sources": "main.*"}, "one table"),
        ({"sources": None}, "one table"),
        ({"shape": "frames", "meta": "full"}, "meta"),
        ({"shape": "frames", "controls": "ignore"}, "controls"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str | None], says: str) -> None:
    options = {name: value for name, value in {**GOOD, **given}.items() if value is not None}
    with pytest.raises(ConfigError, match=says):
        parse_options(options)


@pytest.mark.parametrize("relay", ["http://a:1/", "http://a:1,http://b:1", "https://a, https://b"])
def test_a_relay_is_one_address_or_several(relay: str) -> None:
    assert parse_options({**GOOD, "relay": relay}).relay == relay


def test_all_wrong_options_are_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"(?s)sorces.*sources.*maxRows.*relay"):
        parse_options({"shape": "typed", "sorces": "x", "maxRows": "5"})


def test_no_secret_reaches_the_error() -> None:
    with pytest.raises(ConfigError) as raised:
        parse_options({**GOOD, "token": "s3cret"})
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "us"),
    [("1970-01-01T00:00:01", 1_000_000), ("1970-01-01T01:00:01+01:00", 1_000_000), ("2500000", 2_500_000)],
)
def test_a_timestamp_is_iso_or_microseconds(text: str, us: int) -> None:
    assert parse_options({**GOOD, "startingTimestamp": text}).starting_timestamp == us


def test_spelling_of_case_does_not_matter_as_spark_hands_options_over() -> None:
    assert (
        parse_options({name.lower(): value for name, value in GOOD.items()} | {"MAXROWSPERTRIGGER": "7"}).rows_max == 7
    )
