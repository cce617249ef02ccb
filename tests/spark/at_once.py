"""Run as a program: streams that start at the same moment, the first ones of their session.

Prints, as JSON, the names in the environment that the source's readers share, before and after, the room in its table,
before and after, and each stream's rows.
"""

import json
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException

from databus.spark import tuned_session

STREAMS = 3
TRIES = 10


def environment_of(session: Any) -> Any:
    return (
        session._jsparkSession.sessionState().dataSourceManager().lookupDataSource("databus").dataSourceCls().envVars()
    )


def _field(thing: Any, end: str) -> Any:
    (field,) = (member for member in thing.getClass().getDeclaredFields() if member.getName().endswith(end))
    field.setAccessible(True)
    return field.get(thing)


def room(session: Any) -> int:
    return len(_field(_field(environment_of(session), "underlying"), "table"))


def names(session: Any) -> list[str]:
    environment = environment_of(session)
    found = sorted(environment.keySet().toArray())
    assert len(found) == environment.size(), f"the map says that it has {environment.size()} names, and has {found}"
    return found


def main(relay: str, folder: Path) -> None:
    settings = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    session = tuned_session("at once", "local[2]", folder=folder / "spark", settings=settings)
    before, room_before = names(session), room(session)
    together = threading.Barrier(STREAMS)
    rows = [0] * STREAMS

    def run(index: int) -> None:
        stream = session.readStream.format("databus").options(relay=relay, shape="typed", sources="main.events").load()
        writer = stream.writeStream.trigger(availableNow=True).option("checkpointLocation", str(folder / f"c{index}"))

        def sink(batch: Any, batch_id: int) -> None:
            del batch_id
            rows[index] += batch.toArrow().num_rows

        together.wait()
        for _ in range(TRIES):
            try:
                writer.foreachBatch(sink).start().awaitTermination()
                return
            except StreamingQueryException as error:
                if "failed to connect back" not in str(error):  # Spark gives a process ten seconds to come up
                    raise

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(STREAMS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rooms = [room_before, room(session)]
    told = {"before": before, "after": names(session), "rooms": rooms, "rows": rows}
    print(json.dumps(told))  # noqa: T201 - what it is for
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
