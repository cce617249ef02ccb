"""The beginning of a log and of its segments, and whether a log that is there is the one that is meant."""

import os
import uuid as uuids
from dataclasses import replace
from pathlib import Path

from databus.core import Clock, ConfigError, CorruptData, Identity, SourceChanged, timeline_of
from databus.disk import write_all, write_failure
from databus.log._mark import LogMark
from databus.log._origin import LogOrigin
from databus.log._recover import Recovered, recover
from databus.log._schemas import NAME as SCHEMAS_NAME
from databus.log._schemas import SchemaStore
from databus.log._segment import ORIGIN, End, Segment, SegmentFile, SegmentHeader, segment_path


def create_segment(folder: Path, header: SegmentHeader, schemas: SchemaStore) -> tuple[Segment, SegmentFile]:
    """Make the file of a segment, durably, and open it.

    Raises `DiskFull`, or `ServiceUnavailable` for any other trouble that may pass, such as too many open files; there
    is no such segment then. Raises `CorruptData` if there still may be one: its head would soon be untrue, so nothing
    may be appended to the segment before it.
    """
    path = segment_path(folder, header.number)
    beside = path.with_name(f"{path.name}.tmp")
    known = (schemas.by_fingerprint(fingerprint) for fingerprint in header.in_force.values())
    encoded = header.encode([version for version in known if version is not None])
    try:
        folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # whatever has to be opened is open before the segment has its name
            file = SegmentFile(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            write_all(file.fd, [encoded], 0)
            os.fsync(file.fd)
            beside.rename(path)
            file.path = path
            os.fsync(folder_fd)
        except OSError as error:
            _remove_begun(path, beside, folder_fd, error)
            raise
        finally:
            os.close(folder_fd)
    except OSError as error:
        raise write_failure(path, error) from error
    return Segment(path, replace(header, header_bytes=len(encoded)), None), file


def _remove_begun(path: Path, beside: Path, folder_fd: int, cause: OSError) -> None:
    """Remove a segment that was begun, durably: recovery would believe its head."""
    try:
        beside.unlink(missing_ok=True)
        if path.exists():
            path.unlink()
            os.fsync(folder_fd)
    except OSError as error:
        raise CorruptData(
            f"{path}: this segment was begun and can neither be used ({cause.strerror}) nor be removed "
            f"({error.strerror}); check the disk and restart: the log goes on where it ends"
        ) from error


def found_or_begun(
    folder: Path,
    mark: LogMark | None,
    physical: str,
    identity: Identity,
    clock: Clock,
    schemas: SchemaStore,
    origin: LogOrigin | None,
) -> Recovered:
    """The log in `folder`, recovered, or a new one there. Raises as `Log.open` does."""
    recovered = recover(folder, mark)
    if recovered is None:
        if origin is not None:
            schemas.adopt(origin.definitions)
        recovered = begin(folder, physical, identity, clock, schemas, origin)
    check_known(folder, recovered, physical, identity, schemas)
    return recovered


def begin(
    folder: Path, physical: str, identity: Identity, clock: Clock, schemas: SchemaStore, origin: LogOrigin | None = None
) -> Recovered:
    """A new log, with one segment. origin: which log it is a copy of."""
    before = End(1, 0, -1, ORIGIN, 0)
    if origin is not None:
        before = before._replace(commit=origin.before.commit, max_commit_us=origin.before.max_commit_us)
    in_force = {} if origin is None else origin.in_force
    header = SegmentHeader(
        log=str(uuids.uuid4()) if origin is None else origin.log,
        physical=physical,
        identity=identity,
        number=1,
        timeline=timeline_of(before.commit.scn),
        created_us=clock.now_ns() // 1000,
        before=before,
        published=before,
        previous_bytes=0,
        in_force=in_force,
    )
    segment, _ = create_segment(folder, header, schemas)
    return Recovered((segment,), segment.first_offset, before, in_force)


def check_known(folder: Path, recovered: Recovered, physical: str, identity: Identity, schemas: SchemaStore) -> None:
    """Raise unless `found` is the log of this database, and all that is in force in it is known."""
    header = recovered.segments[-1].header
    if header.physical != physical:
        raise ConfigError(f"{folder}: this is the log of {header.physical!r}, not of {physical!r}; use another folder")
    if (header.identity.uuid, header.identity.scheme) != (identity.uuid, identity.scheme):
        raise SourceChanged(
            f"{physical}: {folder} is the log of {header.identity.description} ({header.identity.scheme} "
            f"{header.identity.uuid}); the database is now {identity.description} ({identity.scheme} {identity.uuid}). "
            f"Put the former back; or stop the relay, move that folder away and start it again: all tables are read "
            f"then, and consumers of the former log have to start over"
        )
    for source_id, fingerprint in recovered.in_force.items():
        if fingerprint and fingerprint not in schemas:
            raise CorruptData(
                f"{folder / SCHEMAS_NAME}: the definition {fingerprint:016x} of source {source_id} is missing, and "
                f"frames in the log use it; restore the file from a copy"
            )
