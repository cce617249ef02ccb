import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from py4j.protocol import Py4JNetworkError

from databus.core import ConfigError, UnsupportedFeature
from databus.operate import configure_logs, hide_in_config, hide_in_text, mark_reported


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("databus").setLevel(logging.NOTSET)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_is_json_where_nobody_looks_and_text_on_a_terminal() -> None:
    pipe, terminal = io.StringIO(), Terminal()
    for stream in (pipe, terminal):
        configure_logs(stream=stream, relay="east")
        structlog.get_logger("databus.test").info("group captured", physical="shop", rows=3)
    line = json.loads(pipe.getvalue())
    assert (line["event"], line["relay"], line["physical"], line["rows"], line["level"]) == (
        "group captured", "east", "shop", 3, "info",
    )  # fmt: skip
    assert "group captured" in terminal.getvalue()
    with pytest.raises(ValueError):
        json.loads(terminal.getvalue())


def test_levels_are_kept_and_other_libraries_speak_the_same_form_from_warnings_up() -> None:
    out = io.StringIO()
    configure_logs(level="warning", stream=out)
    structlog.get_logger("databus.test").info("quiet")
    structlog.get_logger("databus.test").warning("loud")
    logging.getLogger("somebody.else").info("quiet")
    logging.getLogger("somebody.else").warning("loud %d", 2)
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["loud", "loud 2"]


def test_a_traceback_is_one_line_of_json() -> None:
    out = io.StringIO()
    configure_logs(stream=out)
    try:
        dict[str, int]()["why"]
    except KeyError:
        structlog.get_logger("databus.test").exception("broken")
    (line,) = out.getvalue().splitlines()
    assert "KeyError: 'why'" in json.loads(line)["exception"]


def test_what_is_reported_elsewhere_is_not_logged_a_second_time_with_a_traceback() -> None:
    out = io.StringIO()
    configure_logs(stream=out)
    ours, lost, defect = UnsupportedFeature("said by the query"), Py4JNetworkError("lost"), ValueError("a defect")
    mark_reported(ours)
    for error, name in ((ours, "py4j.clientserver"), (lost, "root"), (defect, "py4j.clientserver")):
        try:
            raise error
        except (UnsupportedFeature, Py4JNetworkError, ValueError):
            logging.getLogger(name).exception("while executing the Python Proxy")
    (line,) = out.getvalue().splitlines()
    assert "a defect" in line


def test_a_value_under_a_secret_name_is_not_written() -> None:
    out = io.StringIO()
    configure_logs(stream=out)
    structlog.get_logger("databus.test").info("hello", api_token="abcdef", Password="ghi")  # noqa: S106 - the test's point
    assert "abcdef" not in out.getvalue()
    assert "ghi" not in out.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        "mysql://root:hun/ter2@db: refused",
        "mysql://ann@corp.example:hun/ter2@db: refused",
        "amqp://us/er:hunter2@broker",
        "https://hunter2@sentry.example/5",
        "root:hunter2@tcp(db:3306)",
        "password: hunter2 is wrong",
        "azureSas=hunter2&x=1",
        "sig=hunter2",
        "PWD:hunter2",
        "userpwd=hunter2",
        "urlsignature=hunter2",
        "https://hook.example/x?hunter2",
        "/bucket/x.parquet?X-Amz-Signature=hunter2",
        "token: set-hunter2",
    ],
)
def test_what_is_secret_in_a_text_is_hidden_once(text: str) -> None:
    shown = hide_in_text(text)
    assert "hunter2" not in shown
    assert "(hidden)" in shown
    assert hide_in_text(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "s3://lake/orders@v5: no such version",
        "sources.shop.password: Input should be a valid string",
        "relay.token: expected a file, see docs",
        "Kansas: 5 rows; Arkansas=2",
        "SELECT a FROM t WHERE b=?AND c=?",
        "is it there?yes",
        "http://127.0.0.1:4000/sources answers 404",
        "outputs.copy: column born: 'the 3rd' is no date",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert hide_in_text(text) == text


def test_a_switch_under_a_secret_name_is_shown_and_a_number_is_not() -> None:
    assert hide_in_config({"verify_token": True, "pin_secret": 1}) == {"verify_token": True, "pin_secret": "(hidden)"}


def test_logs_go_to_a_file_where_one_is_named(tmp_path: Path) -> None:
    configure_logs(file=tmp_path / "logs" / "relay.log", style="json")
    structlog.get_logger("databus.test").info("here")
    assert json.loads((tmp_path / "logs" / "relay.log").read_text())["event"] == "here"


@pytest.mark.parametrize(("level", "style"), [("loud", "auto"), ("info", "xml")])
def test_a_level_or_style_that_is_none_is_refused(level: str, style: str) -> None:
    with pytest.raises(ConfigError, match="there are"):
        configure_logs(level=level, style=style)


def test_pyspark_s_own_words_about_an_error_that_is_logged_anyway_are_left_out(
    capfd: pytest.CaptureFixture[str],
) -> None:
    from pyspark.logger import PySparkLogger

    configure_logs(level="info", style="json", stream=io.StringIO())
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).exception("[CAST_INVALID_INPUT] ...", errorClass="CAST_INVALID_INPUT")
    assert capfd.readouterr().err == ""
