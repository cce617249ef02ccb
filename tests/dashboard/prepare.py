"""Fetch what the tests of the dashboard start, ahead of them; says for each whether it is there."""

from pathlib import Path

from databus.core import DatabusError
from tests.dashboard.chromium import Chromium
from tests.dashboard.time_series import InfluxDb, VictoriaMetrics, promtool

PARTS = {
    Chromium.kind: Chromium.prepare,
    InfluxDb.kind: InfluxDb(Path()).prepare,
    VictoriaMetrics.kind: VictoriaMetrics(Path()).prepare,
    "promtool": promtool,
}

if __name__ == "__main__":
    for kind, prepare in PARTS.items():
        try:
            print(f"{kind}: kept in {prepare()}", flush=True)  # noqa: T201
        except DatabusError as error:
            print(f"{kind}: absent: {error}", flush=True)  # noqa: T201
