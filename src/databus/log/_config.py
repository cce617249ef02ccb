"""A log's options, and what it reports about itself."""

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from databus.core import SourceCheckpoint


class LogConfig(BaseModel):
    """How a log is kept."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    segment_bytes_max: int = Field(
        256 << 20, ge=4096, le=16 << 30, description="Length at which the next segment begins, in bytes."
    )
    retention_bytes_max: int = Field(
        32 << 30, ge=0, description="Oldest segments are removed while the log is longer than this, in bytes."
    )
    retention_ms_max: int = Field(
        7 * 86_400_000, ge=0, description="Segments that were ended longer ago than this are removed, in milliseconds."
    )
    fsync_interval_ms: int = Field(
        50, ge=1, le=60_000, description="Longest time from a write to the start of its fsync, in milliseconds."
    )
    fsync_bytes: int = Field(8 << 20, ge=1, description="An fsync starts as soon as this many bytes wait for one.")
    unsynced_bytes_max: int = Field(
        256 << 20, ge=1, description="Appending waits while this many bytes are not fsynced yet."
    )
    index_bytes_every: int = Field(
        64 << 10, ge=1, description="Distance between entries of the sparse index, in bytes."
    )
    free_bytes_min: int = Field(
        256 << 20, ge=0, description="Capture waits while the disk has less room than this, in bytes."
    )


@dataclass(frozen=True, slots=True)
class LogHead:
    """What a log holds now."""

    oldest: SourceCheckpoint
    """The position before the first frame held."""
    published: SourceCheckpoint
    """The position of the published end."""
    bytes: int
    """Length of all segments."""
    segments: int
    rows: int
    """Rows appended since the log was opened."""
    groups: int
    """Groups appended since the log was opened."""
    appended_bytes: int
    """Bytes appended since the log was opened."""
    unsynced_bytes: int
    """Bytes that were appended and not fsynced yet."""
    is_inside_transaction: bool
    """Whether the log ends with a part of a transaction whose last part has not come."""
