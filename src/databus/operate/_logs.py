"""Structured logs: one line for each event, as text for a terminal and as JSON for everything else.

    configure_logs(level="info", relay="shop")
    logger_of("databus.relay").info("relay ready", url=...)

Every part of databus logs through `logger_of`; other libraries' logging comes out in the same form, from warnings up.
Where a program uses databus as a library and has configured no structlog, the lines go to its own `logging`.
Lines go to stderr: stdout belongs to what a command prints.
"""

import logging
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

import structlog

from databus.core import ConfigError
from databus.operate._secrets import HIDDEN, hide_in_text, is_secret_name

_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_QUIET: Final = ("py4j", "pyspark", "asyncio", "aiohttp")
_SILENT: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark's, with handlers of their own to the standard error: each error of a query, which its caller has too, as some
thousand characters of JSON."""


class Logger:
    """See `logger_of`. Where a line goes is decided for each line: a program may configure its logs late."""

    def __init__(self, name: str, facts: Mapping[str, Any]) -> None:
        self._name = name
        self._facts = facts

    def bind(self, **facts: Any) -> "Logger":
        """A logger whose lines carry these facts too."""
        return Logger(self._name, {**self._facts, **facts})

    def __getattr__(self, level: str) -> Any:
        if level.startswith("_"):  # copying and pickling ask for such names
            raise AttributeError(level)
        if structlog.is_configured():
            return getattr(structlog.get_logger(self._name, **self._facts), level)
        return partial(self._say_plainly, level)

    def _say_plainly(self, level: str, event: str, *, exc_info: Any = None, **facts: Any) -> None:
        logger, severity = logging.getLogger(self._name), _LEVELS["error" if level == "exception" else level]
        if logger.isEnabledFor(severity):
            shown = _hide_secrets(None, level, {**self._facts, **facts})
            text = "".join(
                [hide_in_text(event), *(f" {key}={value}" for key, value in shown.items() if value is not None)]
            )
            text = text.encode(errors="backslashreplace").decode()  # a lone surrogate, from bytes that are not text
            logger.log(severity, "%s", text, exc_info=exc_info or level == "exception", stacklevel=2)


def logger_of(name: str) -> Logger:
    """A logger with structlog's methods `debug`, `info`, `warning`, `error` and `exception`.

    It follows `configure_logs`, or the structlog that a program has configured; else its lines go to `logging`, and of
    a program that configures nothing to standard error, from warnings up. Nothing is printed to stdout.
    """
    return Logger(name, {})


class LogStyle(StrEnum):
    """How a line looks. `auto`: text on a terminal, JSON otherwise."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


def configure_logs(
    *,
    level: str = "info",
    style: str = LogStyle.AUTO,
    stream: TextIO | None = None,
    file: Path | None = None,
    **context: Any,
) -> None:
    """Say where this process's logs go and how they look; before anything binds a logger, and callable again.

    level: debug, info, warning or error. stream: instead of stderr; file: instead of both, appended to. context: what
    every line carries, such as `relay`, `physical`, `pipeline`. Raises `ConfigError` for an unknown level or style.
    """
    if level not in _LEVELS:
        raise ConfigError(f"log level {level!r}: there are {', '.join(_LEVELS)}")
    if style not in list(LogStyle):
        raise ConfigError(f"log format {style!r}: there are {', '.join(LogStyle)}")
    out = _open(file) if file is not None else stream or sys.stderr
    is_text = style == LogStyle.TEXT or (style == LogStyle.AUTO and out.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _Context(context),
        _hide_secrets,
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # or the loggers made before this call would stay as they were
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=_rendering(is_text=is_text, out=out))
    )
    handler.addFilter(_is_news)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("databus").setLevel(_LEVELS[level])
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(_LEVELS[level], logging.WARNING))
    for name in _SILENT:
        logging.getLogger(name).disabled = True


def mark_reported(error: BaseException) -> None:
    """Keep an error, which other libraries log with its traceback, out of the logs: its caller reports it."""
    # On the error itself: py4j logs the very object that was raised, and nothing else of it reaches the filter.
    error._is_reported = True  # type: ignore[attr-defined]  # noqa: SLF001


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a record is news. An error that its caller reports is not; nor is a lost connection to Java, which py4j
    logs for every call of that moment, some of them without a logger name, and raises to the caller as well.
    """
    error = record.exc_info[1] if record.exc_info else None
    kind = type(error)
    is_lost = kind.__name__ == "Py4JNetworkError" and kind.__module__.startswith("py4j.")
    return not (is_lost or getattr(error, "_is_reported", False))


def _open(file: Path) -> TextIO:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return file.open("a", buffering=1, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"log file {file}: {error.strerror}") from error


def _rendering(*, is_text: bool, out: TextIO) -> Sequence[structlog.typing.Processor]:
    clean = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    if is_text:
        return [clean, structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=_plain_traceback)]
    return [clean, structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]


def _plain_traceback(out: TextIO, exc_info: Any) -> None:
    structlog.dev.plain_traceback(out, exc_info)


class _Context:
    """Adds the facts that every line of this process carries; a line's own facts win."""

    def __init__(self, context: Mapping[str, Any]) -> None:
        self._context = dict(context)

    def __call__(self, _logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for key, value in self._context.items():
            event.setdefault(key, value)
        return event


def _hide_secrets(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The last safeguard: hide each value under a secret name, and in any text what looks like a secret."""
    for key, value in event.items():
        if is_secret_name(key):
            event[key] = HIDDEN
        elif isinstance(value, str):
            event[key] = hide_in_text(value)
    return event
