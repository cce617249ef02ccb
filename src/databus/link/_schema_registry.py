"""A schema registry as Confluent's: which id a schema has there, and which schema an id.

Confluent's own client asks, and is imported only then. One is made for each question: what it remembers has no bound.
It waits for each piece of an answer, and reads as many as come: time and bytes of a whole answer are bounded here. What
is asked once in a process is for the caller to keep.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import BoundedSemaphore, Thread
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from databus.core import (
    AccessDenied,
    ConfigError,
    DatabusError,
    FatalError,
    LimitExceeded,
    ServiceUnavailable,
    UnrepresentableValue,
    UnsupportedFeature,
    how_to_install,
)

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

_DENIED: Final = (401, 403)
_BUSY: Final = (408, 425, 429)
_NO_SUCH: Final = (40401, 40402, 40403)  # a subject, a version, a schema: said by a registry, not by a proxy
_SHOWN_MAX: Final = 4_000
_IS_URL: Final = "Is `url` that of a registry's calls?"
_PIECES: Final = 2  # of a call's time, at most: to connect, and to answer
_ASKED_MAX: Final = 16
_asking: Final = BoundedSemaphore(_ASKED_MAX)
"""How many questions may be under way in this process. One that was given up ends with the next piece of its answer."""
ANSWER_BYTES_MAX: Final = 16 << 20
T = TypeVar("T")


@dataclass(frozen=True)
class RegistryAccess:
    """How a registry is reached; travels to tasks."""

    url: str
    """Of its calls, of several registries with commas between."""
    username: str | None = None
    """Who we are, with `password`; or with `token` in the place of both. What is secret is shown nowhere."""
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    """Of the authority that its certificate comes from."""
    request_ms_max: int = 10_000
    """Of each wait; the whole answer has twice as much."""
    answer_bytes_max: int = ANSWER_BYTES_MAX

    @property
    def name(self) -> str:
        """As messages name it."""
        return f"the schema registry at {self.url}"

    def registered(self, subject: str, schema: Mapping[str, Any], *, is_new_allowed: bool) -> int:
        """The id of an Avro schema, which is in a subject when this returns.

        is_new_allowed: whether it is put there if it is not; the registry then judges by the subject's compatibility
        whether it may be. Raises `UnsupportedFeature` for one that may not, `ConfigError` for one that is not there
        and is not to be put there, `AccessDenied`, and `ServiceUnavailable` where the registry is away.
        """
        if is_new_allowed:
            number = self._asked(
                lambda client: client.register_schema(subject, _avro(schema)), f"registering a schema as {subject}"
            )
            return self._id(number)
        try:
            return self._id(self._asked(lambda client: client.lookup_schema(subject, _avro(schema)).schema_id, subject))
        except _NotThere as missing:
            text = json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
            raise ConfigError(
                f"{self.name} has no such schema in {subject}, and `register: false` leaves it to you: register it, or "
                f"say `register: true`. The schema: {text[:_SHOWN_MAX]}{'…' if len(text) > _SHOWN_MAX else ''}"
            ) from missing

    def schema(self, number: int) -> dict[str, Any]:
        """The Avro schema of an id, which is a record's.

        Raises `UnrepresentableValue` where the registry has none of that id, or another kind: no message in it can be
        read. Raises `ConfigError` where something else than a registry answers, and what `registered` does.
        """
        try:
            text = self._asked(lambda client: client.get_schema(number).schema_str, f"asking for schema {number}")
        except _NotThere as missing:
            raise UnrepresentableValue(
                f"{self.name} has no schema {number}: is it the one that the messages' writers use?"
            ) from missing
        if not isinstance(text, str):
            raise ConfigError(f"{self.name}: asking for schema {number}: the answer has none. {_IS_URL}")
        try:
            schema = json.loads(text)
        except ValueError as error:
            raise UnrepresentableValue(f"{self.name}: schema {number} is no Avro schema: it is not JSON") from error
        if not isinstance(schema, dict):
            raise UnrepresentableValue(f"{self.name}: schema {number} is not of a record")
        return schema

    def _id(self, number: object) -> int:
        """An id as a registry gives it. Another one would stand before messages, which nobody could read."""
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ConfigError(f"{self.name}: it answers {number!r} where the id of a schema is to be. {_IS_URL}")
        return number

    def _asked(self, ask: Callable[["SchemaRegistryClient"], T], what: str) -> T:
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
            from confluent_kafka.schema_registry.error import SchemaRegistryError
        except ImportError as error:
            raise ConfigError(
                f"the client of schema registries is missing ({error}): {how_to_install('kafka')}; and "
                f"wherever tasks run"
            ) from error
        try:
            client = SchemaRegistryClient(self._settings)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.name}: {error}") from error
        try:
            with client:
                return self._in_time(client, ask)
        except SchemaRegistryError as error:
            raise self._error(error.http_status_code, error.error_code, str(error.error_message), what) from error
        except LimitExceeded as error:
            raise LimitExceeded(f"{self.name}: {what}: {error}") from error
        except Exception as error:  # of the HTTP library, which is another one in other versions
            raise ServiceUnavailable(f"{self.name} does not answer ({what}): {error}") from error

    def _in_time(self, client: "SchemaRegistryClient", ask: Callable[["SchemaRegistryClient"], T]) -> T:
        """Raises what `ask` does, and `TimeoutError` where the whole answer does not come in time."""
        limit_s = _PIECES * (self.url.count(",") + 1) * self.request_ms_max / 1e3
        deadline = time.monotonic() + limit_s
        session = client._rest_client.session  # noqa: SLF001 - it offers no bound
        session.headers["Accept-Encoding"] = "identity"  # what is unpacked has no bound
        session.event_hooks = {"response": [lambda response: self._bound(response, deadline)]}
        answers: SimpleQueue[tuple[T | None, Exception | None]] = SimpleQueue()

        def run() -> None:
            try:
                answers.put((ask(client), None))
            except Exception as error:  # noqa: BLE001 - raised by who waits
                answers.put((None, error))
            finally:
                _asking.release()

        if not _asking.acquire(timeout=limit_s):
            raise TimeoutError(f"{_ASKED_MAX} questions are under way, and none has ended in {limit_s:g} s")
        Thread(target=run, daemon=True, name="databus-registry").start()
        with suppress(Empty):
            answer, error = answers.get(timeout=max(deadline - time.monotonic(), 0))
            if error is not None:
                raise error
            return cast(T, answer)
        raise TimeoutError(f"no whole answer in {limit_s:g} s")

    def _bound(self, response: Any, deadline: float) -> None:
        """Have the client, which has the head of a response, read no more than is allowed of it."""
        from confluent_kafka.schema_registry.common._httpx_compat import httpx

        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise LimitExceeded(f"its answer is packed, which it was not asked for. {_IS_URL}")
        pieces = self._bounded(response.stream, deadline)

        class Bounded(httpx.SyncByteStream):
            def __iter__(self) -> Iterator[bytes]:
                return pieces

        response.stream = Bounded()

    def _bounded(self, pieces: Any, deadline: float) -> Iterator[bytes]:
        size = 0
        try:
            for piece in pieces:
                size += len(piece)
                if time.monotonic() > deadline:
                    raise TimeoutError("no whole answer in time")
                if size > self.answer_bytes_max:
                    raise LimitExceeded(
                        f"its answer is longer than {self.answer_bytes_max:,} bytes. {_IS_URL} If its schemas are as "
                        f"large, raise `answer_bytes_max` below `registry`"
                    )
                yield piece
        finally:
            pieces.close()

    @property
    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"url": self.url, "timeout": self.request_ms_max / 1e3, "max.retries": 0}
        if self.token is not None:
            settings |= {"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": self.token}
            settings["bearer.auth.logical.cluster"] = ""  # of Confluent's cloud
        elif self.username is not None:
            settings["basic.auth.user.info"] = f"{self.username}:{self.password or ''}"
        if self.ca_file is not None:
            settings["ssl.ca.location"] = self.ca_file
        return settings

    def _error(self, status: int, code: int, message: str, what: str) -> DatabusError:
        text = f"{self.name}: {what}: {message[:_SHOWN_MAX]} ({status})"
        if status == 409:
            return UnsupportedFeature(
                f"{text}. Readers of the older messages would not get along with it, says the subject's compatibility. "
                f"Ask for a weaker one there, register the schema by hand, or give the table another topic; then "
                f"start again: nothing of the new schema was written"
            )
        if status in _DENIED:
            return AccessDenied(f"{text}. Look at `username` and `password`, or `token`, below `registry`")
        if code in _NO_SUCH:
            return _NotThere(text)
        if status in _BUSY or status >= 500:
            return ServiceUnavailable(text)
        return ConfigError(f"{text}. {_IS_URL}") if status == 404 else FatalError(text)


class RegistryOptions(BaseModel):
    """A schema registry as Confluent's; a relay is one too."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(
        description="Where its calls are, of several registries with commas between; a relay's are below `/registry`.",
        examples=["https://registry:8081", "http://relay.internal:11115/registry"],
    )
    username: str | None = Field(None, description="Who we are, with `password`.")
    password: SecretStr | None = Field(
        None, description="Goes with `username`; name it by reference.", examples=["${file:/run/secrets/registry}"]
    )
    token: SecretStr | None = Field(
        None, description="A bearer token, in the place of both; name it by reference. A relay's is its own."
    )
    ca_file: str | None = Field(
        None, description="PEM file of the authority that signed its certificate, wherever it is asked."
    )
    request_ms_max: int = Field(
        10_000,
        ge=100,
        le=300_000,
        description="Longest wait for a connection, and for each piece of an answer, in milliseconds; the whole answer "
        "has twice as much.",
    )
    answer_bytes_max: int = Field(
        ANSWER_BYTES_MAX, ge=65_536, le=1 << 30, description="Longest answer that is read, in bytes."
    )

    @field_validator("url")
    @classmethod
    def _is_one(cls, url: str) -> str:
        for address in url.split(","):
            parts = urlsplit(address.strip())
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("it is no URL that begins with http:// or https://")
            if parts.username is not None or parts.password is not None:
                raise ValueError("name and password do not belong into a URL: give `username` and `password`")
        return url

    @model_validator(mode="after")
    def _is_one_of_us(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise ValueError("`username` and `password` go together")
        if self.token is not None and self.username is not None:
            raise ValueError("give `token`, or `username` and `password`")
        return self

    @property
    def access(self) -> RegistryAccess:
        """The same as it is used, secrets in the clear: to be shown nowhere."""
        return RegistryAccess(
            self.url,
            self.username,
            None if self.password is None else self.password.get_secret_value(),
            None if self.token is None else self.token.get_secret_value(),
            self.ca_file,
            self.request_ms_max,
            self.answer_bytes_max,
        )


class _NotThere(ConfigError):
    """The registry says that it has no such thing."""


def _avro(schema: Mapping[str, Any]) -> "Schema":
    from confluent_kafka.schema_registry import Schema

    return Schema(json.dumps(schema), "AVRO")
