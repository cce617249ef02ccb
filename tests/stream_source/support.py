"""A followed file, the source that reads it, and the log in which its lines end up."""

import json

from databus.log import Resume
from databus.sources.stream import StreamConfig, StreamSource
from databus.testing._source_suite import Tape, take


def config_of(**options):
    quick = {"poll_ms": 1, "rotate_wait_ms": 0, "restart_ms_min": 1, "restart_ms_max": 2}
    return StreamConfig.model_validate({"type": "stream", **quick, **options})


class Followed:
    """A file `app.log` in a folder, and one log of it over any number of sources."""

    def __init__(self, folder, **options):
        self.folder = folder
        self.path = folder / "app.log"
        self.options = options
        self.tape = Tape()
        self.source = None

    def write(self, text, name="app.log"):
        with (self.folder / name).open("a") as file:
            file.write(text)

    def start(self, **options):
        """A source that goes on where the log ends, as after a crash."""
        self.close()
        self.source = StreamSource("app", config_of(path=str(self.path), **self.options, **options))
        self.source.identify()
        resume = self.tape.resume() if self.tape.groups else Resume(log_id="suite-log")
        self.source.start(resume)
        return self

    def poll(self):
        """All that waits; returns the lines of the log so far."""
        take(self.source, self.tape)
        return self.lines

    @property
    def rows(self):
        return [row for group in self.tape.groups for rows in group.rows for row in rows.batch.to_pylist()]

    @property
    def lines(self):
        return [row["line"] for row in self.rows]

    @property
    def gaps(self):
        return [group.control.body["reason"] for group in self.tape.groups if group.control is not None]

    def close(self):
        if self.source is not None:
            self.source.close()
            self.source = None


def numbered(first, last):
    return "".join(f"{json.dumps({'n': number})}\n" for number in range(first, last))


def numbers(lines):
    return [json.loads(line)["n"] for line in lines]
