"""Options by which a schema registry is reached: of whatever reads or writes Avro with its ids."""

from typing import Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from databus.link._schema_registry import ANSWER_BYTES_MAX, RegistryAccess


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
        for each in url.split(","):
            parts = urlsplit(each.strip())
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
