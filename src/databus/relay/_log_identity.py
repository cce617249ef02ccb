"""Which database a log is of."""

from pathlib import Path

from databus.core import Identity, SourceChanged
from databus.log import Log, SegmentHeader, segment_numbers, segment_path


def held_identity(folder: Path) -> Identity | None:
    """Which database the log in `folder` is of; None where there is none."""
    numbers = segment_numbers(folder)
    return SegmentHeader.load(segment_path(folder, numbers[0])).identity if numbers else None


def check_identity(log: Log, found: Identity) -> None:
    """Raise `SourceChanged` unless this is the physical source that the log belongs to."""
    known = log.identity
    if known.uuid != found.uuid:
        raise SourceChanged(
            f"{log.physical}: {log.folder} is the log of {known.description} ({known.uuid}), and the database is now "
            f"{found.description} ({found.uuid}). What the log holds is served. Put the former back; or stop the "
            f"relay, move that folder away and start it again: all tables are read then, and consumers of the former "
            f"log have to start over"
        )
    if known.scheme != found.scheme:
        raise SourceChanged(
            f"{log.physical}: its SCNs were made by the scheme {known.scheme!r} and now are by {found.scheme!r}; "
            f"a scheme never changes inside a timeline. For a new log, stop the relay, move that folder away and start "
            f"it again: all tables are read then, and consumers of the former log have to start over"
        )
