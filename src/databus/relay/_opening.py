"""The beginning of a log and of its segments, and whether a log that is there is the one that is meant."""

import uuid as uuids
from dataclasses import replace
from pathlib import Path

from databus.core import Clock, ConfigError, Corrupt, SourceChanged
from databus.relay._files import replace_file
from databus.relay._recover import Recovered
from databus.relay._schemas import NAME as SCHEMAS_NAME
from databus.relay._schemas import SchemaStore
from databus.relay._segment import ORIGIN, End, Segment, SegmentHeader, segment_path
from databus.sources import Identity


def create_segment(folder: Path, header: SegmentHeader, schemas: SchemaStore) -> Segment:
    """Make the file of a segment, durably. Raises `DiskFull`, and there is none then."""
    path = segment_path(folder, header.number)
    known = (schemas.by_fingerprint(fingerprint) for fingerprint in header.in_force.values())
    encoded = header.encode([version for version in known if version is not None])
    replace_file(path, [encoded], durable=True)
    return Segment(path, replace(header, header_bytes=len(encoded)), None)


def begin(folder: Path, physical: str, identity: Identity, clock: Clock, schemas: SchemaStore) -> Recovered:
    """A new log, with one segment."""
    origin = End(1, 0, -1, ORIGIN, 0)
    header = SegmentHeader(
        log=str(uuids.uuid4()),
        physical=physical,
        identity=identity,
        number=1,
        timeline=0,
        created_us=clock.now_ns() // 1000,
        before=origin,
        published=origin,
        previous_bytes=0,
    )
    segment = create_segment(folder, header, schemas)
    return Recovered((segment,), segment.first_offset, origin, {})


def check_known(folder: Path, found: Recovered, physical: str, identity: Identity, schemas: SchemaStore) -> None:
    """Raise unless `found` is the log of this database, and all that is in force in it is known."""
    header = found.segments[-1].header
    if header.physical != physical:
        raise ConfigError(f"{folder}: this is the log of {header.physical!r}, not of {physical!r}; use another folder")
    if (header.identity.uuid, header.identity.scheme) != (identity.uuid, identity.scheme):
        raise SourceChanged(
            f"{physical}: {folder} is the log of {header.identity.description} ({header.identity.scheme} "
            f"{header.identity.uuid}); the database is now {identity.description} ({identity.scheme} {identity.uuid}). "
            f"Connect the former, or use another folder for the log of this one"
        )
    for source_id, fingerprint in found.in_force.items():
        if fingerprint and fingerprint not in schemas:
            raise Corrupt(
                f"{folder / SCHEMAS_NAME}: the definition {fingerprint:016x} of source {source_id} is missing, and "
                f"frames in the log use it; restore the file from a copy"
            )
