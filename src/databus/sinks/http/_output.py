"""Web hooks: the changes of a batch are posted to an address, in order per key, at least once."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator

from databus.flow import BUCKETS_MAX, Bucket, KeyChoice, Letter, Letters, StagedBatch, Tasks
from databus.formats import BigIntegers, check_whole_rows
from databus.link import Access
from databus.plugins import Delivery, KeyColumns, OutputConfig
from databus.schema import TableSchema
from databus.sinks._letters import LettersConfig, LettersOutput, refuse_gaps
from databus.sinks.http._bodies import BodyForm
from databus.sinks.http._client import HttpTarget
from databus.sinks.http._signature import key_of_secret
from databus.sinks.http._writer import HttpWriter

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS: Final = frozenset(
    {"connection", "content-length", "content-type", "host", "idempotency-key", "te", "transfer-encoding", "upgrade"}
)
_PLACES: Final = re.compile(r"\{(physical|db|table)\}")
_NO_URL: Final = "expected http://host:port/path or https://host:port/path"


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


Secrets = Annotated[list[SecretStr], BeforeValidator(_as_list, json_schema_input_type=str | list[str])]
"""One or more secrets; one may stand without brackets."""


class HttpConfig(LettersConfig):
    """Changes as JSON, posted to an address. See docs/webhooks.md."""

    catch_up_default: ClassVar[Literal["together", "apart"]] = "together"
    type: Literal["http"] = "http"
    url: SecretStr = Field(
        description="Where requests go. `{physical}`, `{db}` and `{table}` stand for a table's names. Errors name its "
        "host alone, so its path may hold a secret; name it by reference then.",
        examples=["https://shop.internal/changes", "https://shop.internal/changes/{db}/{table}"],
    )
    format: Literal["own", "debezium", "maxwell", "canal", "cloudevents", "cloudevents_debezium"] = Field(
        "own", description="What a change looks like: see docs/formats.md. `own` is a row, as in docs/http.md."
    )
    body: Literal["array", "lines", "object"] = Field(
        "array", description="What a request holds: a JSON array of changes, lines of JSON, or one change alone."
    )
    big_integers: Literal["number", "string"] = Field(
        "number", description="How integers beyond 2^53 are written in the formats `own` and `cloudevents`."
    )
    controls: bool = Field(
        False, description="Whether truncations, drops and other controls are sent among the rows; format `own` alone."
    )
    headers: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="Headers that each request has. What is secret is named by reference.",
        examples=[{"Authorization": "Bearer ${HOOK_TOKEN}"}],
    )
    secret: Secrets = Field(
        default_factory=list,
        description="Secrets that requests are signed with, each for one signature: `whsec_` and base64, or any text. "
        "Give the old and the new one while receivers change over. Named by reference.",
        examples=["${HOOK_SECRET}", ["${file:/run/secrets/new}", "${file:/run/secrets/old}"]],
    )
    ca_file: str | None = Field(
        None, description="PEM file of the authority behind the target's certificate, on every machine that runs tasks."
    )
    certificate_file: str | None = Field(
        None, description="PEM file of the certificate that is shown to the target, on every machine that runs tasks."
    )
    key_file: str | None = Field(None, description="Its key, if that is in another file.")
    key: KeyColumns = None
    on_error: Literal["halt", "retry", "dead_letter"] = Field(
        "halt",
        description="What to do about a request that the target refuses (400, 404, 409, 422 and the like): stop "
        "the output; try the batch again until it is taken; or keep the changes that are refused, and what follows of "
        "their keys, as dead letters (`databus dead-letters`), and go on. 401, 403 and redirects always stop it.",
    )
    on_gap: Literal["stop", "continue"] = Field(
        "stop", description="What to do where changes are missing and no snapshot is said to follow: stop, or go on."
    )
    buckets: int = Field(
        1,
        ge=1,
        le=BUCKETS_MAX,
        description="How many tasks send at a time, each the rows of some of the keys, one request at a time.",
    )
    request_rows_max: int = Field(1_000, ge=1, le=1_000_000, description="Most changes of a request.")
    request_bytes_max: int = Field(
        1 << 20, ge=1 << 10, le=1 << 28, description="Largest body, in bytes; a larger change has one of its own."
    )
    connect_ms_max: int = Field(5_000, ge=1, le=600_000, description="Longest wait for a connection, in milliseconds.")
    request_ms_max: int = Field(
        30_000,
        ge=1,
        le=600_000,
        description="Longest time from the first byte of a request to the last one of its answer, in milliseconds.",
    )
    retry_ms_max: int = Field(
        30_000,
        ge=0,
        le=3_600_000,
        description="How long a target that is busy or gone (no answer, 408, 425, 429, 5xx) is asked again before the "
        "batch is given up, in milliseconds; the query then tries it again.",
    )
    retry_after_ms_max: int = Field(
        60_000, ge=0, le=3_600_000, description="Longest wait that the target may ask for by `Retry-After`, as above."
    )

    @property
    def key_choice(self) -> KeyChoice:
        """See `OutputConfig.key_choice`."""
        return KeyChoice(self.key or ())

    @field_validator("url")
    @classmethod
    def _is_url(cls, url: SecretStr) -> SecretStr:
        text = _PLACES.sub("x", url.get_secret_value())
        try:
            parts = urlsplit(text)
            known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            raise ValueError(f"{_NO_URL}, the port from 1 to 65535") from None
        is_plain = text.isascii() and text.isprintable() and " " not in text and "{" not in text
        if known and parts.username is not None:
            raise ValueError("a name or password stands in it; give them in `headers`, as `Authorization`")
        if known and "{" in text:
            raise ValueError("what stands in braces is none of {physical}, {db} and {table}")
        if not known or parts.fragment or not is_plain:
            raise ValueError(_NO_URL)
        if _PLACES.search(urlsplit(url.get_secret_value()).netloc):
            raise ValueError("a table's names may stand in the path alone")
        return url

    @field_validator("headers")
    @classmethod
    def _are_headers(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, value in headers.items():
            if not _TOKEN.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a header")
            if name.lower() in _OURS or name.lower().startswith("webhook-"):
                raise ValueError(f"{name} is set by the output itself")
            text = value.get_secret_value()
            if not (text.isascii() and text.isprintable()):
                raise ValueError(f"the value of {name} is not printable ASCII")
        return headers

    @field_validator("secret")
    @classmethod
    def _are_keys(cls, secrets: list[SecretStr]) -> list[SecretStr]:
        for secret in secrets:
            key_of_secret(secret.get_secret_value())
        return secrets

    @model_validator(mode="after")
    def _goes_together(self) -> "HttpConfig":
        if self.controls and self.format != "own":
            raise ValueError("`controls` have a form in `format: own` alone")
        is_tls = self.url.get_secret_value().startswith("https:")
        access = Access.of(None, self.ca_file, self.certificate_file, self.key_file)
        if access.options() and not is_tls:
            raise ValueError("`ca_file`, `certificate_file` and `key_file` are of use with https:// only")
        if self.key_file is not None and self.certificate_file is None:
            raise ValueError("`key_file`: give `certificate_file` too")
        return self


class HttpOutput(LettersOutput):
    """Posts changes to an address."""

    config_model: ClassVar[type[OutputConfig]] = HttpConfig
    delivery: ClassVar[Delivery] = Delivery.AT_LEAST_ONCE
    config: HttpConfig

    def check_table(self, table: TableSchema) -> None:
        """See `ChecksTables.check_table`."""
        check_whole_rows(table, self.config.format, f"outputs.{self.context.output}.format: ")

    def open(self) -> None:
        """See `Output.open`. Raises `InputError` as `check_left` does."""
        self.check_left()

    def part_writer(self) -> HttpWriter:
        """See `Output.part_writer`."""
        config = self.config
        return HttpWriter(
            config.buckets,
            HttpTarget(
                tuple((name, value.get_secret_value()) for name, value in config.headers.items()),
                Access.of(None, config.ca_file, config.certificate_file, config.key_file),
                connect_ms_max=config.connect_ms_max,
                request_ms_max=config.request_ms_max,
                retry_ms_max=config.retry_ms_max,
                retry_after_ms_max=config.retry_after_ms_max,
            ),
            BodyForm(
                config.url.get_secret_value(),
                config.format,
                config.body,
                BigIntegers(config.big_integers),
                config.controls,
                config.request_rows_max,
                config.request_bytes_max,
            ),
            tuple(key_of_secret(secret.get_secret_value()) for secret in config.secret),
            config.on_error,
            self.kept_letters,
            config.key_choice,
        )

    def replay(self, letters: Letters) -> Sequence[Letter]:
        """See `KeepsLetters.replay`."""
        bucket = Bucket(self.context.pipeline, self.context.output, "replay", 0, 1)
        return self.part_writer().replay(bucket, letters, self.letters)

    def commit(self, batch: StagedBatch, tasks: Tasks) -> None:
        """See `Output.commit`. All rows were taken; a gap is not passed in silence."""
        del tasks
        if self.config.on_gap == "stop":
            refuse_gaps(batch, self.context.output, "the target")
        self.release_letters(batch)
