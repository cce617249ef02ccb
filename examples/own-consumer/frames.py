"""Follows a relay without databus: HTTP and frames, as docs/http.md and docs/wire-format.md say. Needs pyarrow.

    python frames.py http://127.0.0.1:11115 shop place.json

prints every change and keeps its place in place.json, so that the next run goes on there.
"""

import json
import os
import struct
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pyarrow as pa

ROWS, COMMIT, CONTROL = 1, 2, 3
CONTINUES, UNREAD = 1, 8
BUS_SEQ = 1 << 40  # from here on a `_seq` is the bus's own, and means something in that log only
FIRST, REST = struct.Struct("<4sBBHHHIIIQ"), struct.Struct("<IIQqqqqqqI")  # the header, from 0 and from 32
CHANGES = {1: "insert", 2: "update_preimage", 3: "update_postimage", 4: "delete"}


def crc_table():
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


TABLE = crc_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


class Refused(Exception):
    """status: of HTTP. error: as the relay says it, with what else is in it."""

    def __init__(self, status, error):
        super().__init__(f"{status} {error['error']}: {error['message']}")
        self.status = status
        self.error = error


def ask(url, path, query, token=None):
    """An open response; what is no answer raises `Refused`."""
    request = urllib.request.Request(f"{url}{path}?{urllib.parse.urlencode(query)}")
    request.add_header("Accept", "application/vnd.databus.frames; version=2")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        return urllib.request.urlopen(request, timeout=120)
    except urllib.error.HTTPError as refused:
        raise Refused(refused.code, json.loads(refused.read())) from None


def read_exactly(response, count, may_end=False):
    data = response.read(count)
    if may_end and not data:
        return None
    if len(data) < count:
        raise EOFError(f"the stream was cut off: {len(data)} bytes of {count}")
    return data


def frames_of(response):
    """(header as a dict, position as JSON, body) of each frame, its checksums checked."""
    while (start := read_exactly(response, 128, may_end=True)) is not None:
        magic, kind, version, flags, length, _, header_crc, body_crc, rows, body_bytes = FIRST.unpack_from(start)
        source, _, fingerprint, first_scn, first_seq, scn, seq, commit_us, _, position_bytes = REST.unpack_from(
            start, 32
        )
        if magic != b"DBF1" or version > 2 or flags & ~0b1011:
            raise ValueError(f"not a frame that this program reads: {magic!r}, version {version}, flags {flags}")
        header = start + read_exactly(response, length - 128)
        body = read_exactly(response, body_bytes)
        if crc32c(header[:12] + bytes(4) + header[16:]) != header_crc or crc32c(body) != body_crc:
            raise ValueError(f"a checksum is wrong in the frame at SCN {scn}")
        position = json.loads(header[100 : 100 + position_bytes] or b"{}")
        if kind == COMMIT and body.strip():
            position |= json.loads(body)
        yield {
            "kind": kind, "flags": flags, "rows": rows, "source": source, "fingerprint": f"{fingerprint:016x}",
            "first": (first_scn, first_seq), "scn": scn, "seq": seq, "commit_us": commit_us,
        }, position, body  # fmt: skip


class Place:
    """Where a consumer stands in one physical source: what it sends as `from`, once what came before is done."""

    def __init__(self, value=None):
        self.value = value or {}
        self.snapshots = dict(self.value.get("snapshots", {}))

    def control(self, body):
        if body["kind"] == "snapshot_begin":
            self.snapshots[body["source"]] = body["generation"]
        elif body["kind"] in ("snapshot_end", "drop"):
            self.snapshots.pop(body["source"], None)

    def commit(self, header, position, headers):
        """After a group. headers: of the response."""
        inside = header["flags"] & CONTINUES or header["seq"] >= BUS_SEQ
        self.snapshots.pop("*", None)
        if header["flags"] & UNREAD:
            self.snapshots["*"] = 0
        self.value = {
            "uuid": headers["x-dbus-uuid"],
            "scn": header["scn"],
            "seq": header["seq"] if inside else None,
            "txid": position["txid"],
            "ts_us": header["commit_us"],
            "log": headers["x-dbus-log"] if inside or self.snapshots else None,
            "snapshots": dict(self.snapshots),
        }


def groups_of(response, place):
    """(rows by source id, controls) of each group, after which `place` is behind it."""
    batches, controls = [], []
    for header, position, body in frames_of(response):
        if header["kind"] == ROWS:
            batches.append((header["source"], pa.ipc.open_stream(body).read_next_batch()))
        elif header["kind"] == CONTROL:
            controls.append(json.loads(body))
            place.control(controls[-1])
        else:
            place.commit(header, position, response.headers)
            yield batches, controls
            batches, controls = [], []
    if batches or controls:
        raise EOFError("the stream was cut off inside a group")


def start_at(place):
    return {"from": json.dumps(place.value)} if place.value else {"start": "beginning"}


def main():
    url, physical, file = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    token = os.environ.get("DATABUS_TOKEN")
    place = Place(json.loads(file.read_text()) if file.exists() else None)
    sources = json.load(ask(url, "/sources", {}, token))
    names = {each["id"]: each["name"] for each in sources if each["name"].startswith(f"{physical}/")}
    try:
        with ask(url, "/stream", {"physical": physical, "wait_ms": 1000, **start_at(place)}, token) as response:
            for batches, controls in groups_of(response, place):
                for control in controls:
                    print(control["kind"], control["source"])
                for source, batch in batches:
                    for row in batch.to_pylist():
                        values = {name: value for name, value in row.items() if not name.startswith("_")}
                        print(CHANGES[row["_change_type"]], names.get(source, source), values)
                file.write_text(json.dumps(place.value))  # what was done before stays done
    except Refused as refused:
        if refused.status == 410:
            sys.exit(f"{refused}\nThe log goes back to SCN {refused.error['oldest']}: read the tables again.")
        sys.exit(str(refused))


if __name__ == "__main__":
    main()
