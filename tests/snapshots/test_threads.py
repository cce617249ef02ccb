"""What threads that read tables ask of each other's work, while the thread that follows the log changes it."""

import threading
from types import SimpleNamespace

from databus.sources.snapshots import SnapshotReader


class Readings(dict):
    """While somebody goes through them, another thread leaves out one of them, unless it has to wait for that."""

    def __init__(self, reader):
        super().__init__((name, SimpleNamespace(todo=(), chunks=(), end=lambda: None)) for name in "abc")
        self.thread = threading.Thread(target=reader.drop, args=("b",))

    def values(self):
        for number, each in enumerate(super().values()):
            if number == 0 and not self.thread.ident:
                self.thread.start()
                self.thread.join(0.5)  # it waits for whoever goes through them
            yield each


def test_whether_somebody_idles_may_be_asked_while_a_table_is_left_out():
    """Else a table that begins or ends at that moment would end the whole capture."""
    reader = SnapshotReader(lambda host: None)
    reader._idle = 1
    reader._readings = readings = Readings(reader)
    assert reader.somebody_idles
    readings.thread.join(30)
    assert [*readings] == ["a", "c"]
