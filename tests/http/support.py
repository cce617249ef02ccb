"""An output `http` as the tests make it, and what its receiver was sent."""

from contextlib import contextmanager

from databus.pipeline import OutputContext
from databus.sinks.http._output import HttpConfig, HttpOutput
from tests.outputs.harnesses import parsed

QUICK = {"retry_ms_max": 300, "request_ms_max": 5_000, "retry_after_ms_max": 1_000}


def output_of(receiver, folder, **options):
    given = {"type": "http", "from": "shop", "url": receiver and receiver.url, **QUICK, **options}
    return HttpOutput(HttpConfig.model_validate(given), OutputContext("shop", "hook", folder))


@contextmanager
def opened(receiver, folder, **options):
    output = output_of(receiver, folder, **options)
    output.open()
    try:
        yield output
    finally:
        output.close()


class HttpHarness:
    keeps = "changes"

    def __init__(self, receiver, folder, **options):
        self.receiver = receiver
        self.folder = folder
        self.options = options

    def full(self):
        return None

    def make(self):
        return output_of(self.receiver, self.folder, **self.options)

    def read(self, physical, table):
        name = f"{physical}/{table.source}"
        mine = [row for row in self.receiver.changes if row["_source"] == name and "_control" not in row]
        return [parsed(row, table) for row in mine]
