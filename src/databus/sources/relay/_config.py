"""Options of the relay source."""

from typing import Literal, Self

from pydantic import Field, model_validator

from databus.link import Access
from databus.sources._config import LocalPath, SourceConfig

_CHOSEN_UPSTREAM = ("tables", "exclude", "columns", "ids")


class RelaySourceConfig(SourceConfig):
    """The log that another relay has of a physical source of the same name, byte for byte."""

    type: Literal["relay"] = "relay"
    url: str = Field(
        pattern=r"^https?://[^/\s@]+/?$",
        description="Address of the relay upstream.",
        examples=["http://relay.internal:11115"],
    )
    token_file: LocalPath | None = Field(None, description="File with the token of the relay upstream.")
    ca_file: LocalPath | None = Field(
        None,
        description="For a relay at `https://`: file with the certificate of the authority that signed the relay's. "
        "Without it, who this machine trusts may have signed it.",
    )
    certificate_file: LocalPath | None = Field(
        None, description="File with a certificate for a relay that wants to see one."
    )
    key_file: LocalPath | None = Field(
        None, description="File with that certificate's key, if it has a file of its own."
    )
    start: Literal["beginning", "earliest", "latest"] = Field(
        "earliest",
        description="Where a new log begins: with the first frame of the log upstream (an error if it no longer has "
        "that), with the oldest that it holds, or with what comes from now on.",
    )
    on_new_log: Literal["stop", "begin"] = Field(
        "stop",
        description="When the relay upstream has another log than the one that was copied, since its folder was moved "
        "away: stop, or begin a new log. The one before is kept below `.former` in the relay's folder, and is not "
        "served any more.",
    )
    read_ms_max: int = Field(
        60_000,
        ge=1_000,
        le=3_600_000,
        description="A relay upstream that sends nothing for this long is connected to again; longer than its "
        "`capture.progress_ms`.",
    )
    buffer_bytes_max: int = Field(
        32 << 20, ge=1 << 20, le=1 << 30, description="What may wait to be written, besides one group of frames."
    )

    @property
    def choice(self) -> None:
        """See `SourceConfig.choice`."""
        return

    @property
    def access(self) -> Access:
        """The files with which the relay upstream is asked."""
        return Access.of(self.token_file, self.ca_file, self.certificate_file, self.key_file)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in _CHOSEN_UPSTREAM:
            if name in self.model_fields_set:
                raise ValueError(
                    f"`{name}`: a copy has all that the log upstream has, by the same ids; choose tables and columns "
                    f"there, or where this relay is read"
                )
        if mistake := self.access.mistake(is_tls=self.url.startswith("https:")):
            raise ValueError(mistake)
        return self
