"""A schema registry as Confluent's: which id a schema has there, and which schema an id.

Confluent's own client asks, and is imported only then. One is made for each question: what it remembers has no bound.
What is asked once in a process is for the caller to keep.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from databus.core import AccessDenied, ConfigError, DatabusError, FatalError, ServiceUnavailable, UnsupportedFeature

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

_DENIED: Final = (401, 403)
_BUSY: Final = (408, 425, 429)
_NO_SUCH: Final = (40401, 40402, 40403)  # a subject, a version, a schema: said by a registry, not by a proxy
_SHOWN_MAX: Final = 4_000
T = TypeVar("T")


@dataclass(frozen=True)
class RegistryAccess:
    """How a registry is reached; travels to tasks. url: of its calls, of several registries with commas between.

    username and password, or token: who we are; what is secret is shown nowhere. ca_file: of the authority that its
    certificate comes from.
    """

    url: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    request_ms_max: int = 10_000

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
            found = self._asked(
                lambda client: client.register_schema(subject, _avro(schema)), f"registering a schema as {subject}"
            )
            return int(found)
        try:
            return int(self._asked(lambda client: client.lookup_schema(subject, _avro(schema)).schema_id or 0, subject))
        except _NotThere as missing:
            text = json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
            raise ConfigError(
                f"{self.name} has no such schema in {subject}, and `register: false` leaves it to you: register it, or "
                f"say `register: true`. The schema: {text[:_SHOWN_MAX]}{'…' if len(text) > _SHOWN_MAX else ''}"
            ) from missing

    def schema(self, number: int) -> dict[str, Any]:
        """The Avro schema of an id. Raises `ConfigError` where there is none, and what `registered` does."""
        try:
            text = self._asked(lambda client: client.get_schema(number).schema_str, f"asking for schema {number}")
        except _NotThere as missing:
            raise ConfigError(
                f"{self.name} has no schema {number}: is it the one that the messages' writers use?"
            ) from (missing)
        try:
            found = json.loads(text or "")
        except ValueError as error:
            raise FatalError(f"{self.name}: schema {number} is no Avro schema: it is not JSON") from error
        if not isinstance(found, dict):
            raise FatalError(f"{self.name}: schema {number} is not of a record")
        return found

    def _asked(self, ask: Callable[["SchemaRegistryClient"], T], what: str) -> T:
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
            from confluent_kafka.schema_registry.error import SchemaRegistryError
        except ImportError as error:
            raise ConfigError(
                f"the client of schema registries is missing ({error}): pip install 'databus-cdc[kafka]', here and "
                f"wherever tasks run"
            ) from error
        try:
            client = SchemaRegistryClient(self._settings)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.name}: {error}") from error
        try:
            with client:
                return ask(client)
        except SchemaRegistryError as error:
            raise self._error(error.http_status_code, error.error_code, str(error.error_message), what) from error
        except Exception as error:  # of the HTTP library, which is another one in other versions
            raise ServiceUnavailable(f"{self.name} does not answer ({what}): {error}") from error

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

    def _error(self, status: int, code: int, said: str, what: str) -> DatabusError:
        told = f"{self.name}: {what}: {said[:_SHOWN_MAX]} ({status})"
        if status == 409:
            return UnsupportedFeature(
                f"{told}. Readers of the older messages would not get along with it, says the subject's compatibility. "
                f"Ask for a weaker one there, register the schema by hand, or give the table another topic; then "
                f"start again: nothing of the new schema was written"
            )
        if status in _DENIED:
            return AccessDenied(f"{told}. Look at `username` and `password`, or `token`, below `registry`")
        if code in _NO_SUCH:
            return _NotThere(told)
        if status in _BUSY or status >= 500:
            return ServiceUnavailable(told)
        return ConfigError(f"{told}. Is `url` that of a registry's calls?") if status == 404 else FatalError(told)


class _NotThere(ConfigError):
    """The registry says that it has no such thing."""


def _avro(schema: Mapping[str, Any]) -> "Schema":
    from confluent_kafka.schema_registry import Schema

    return Schema(json.dumps(schema), "AVRO")
