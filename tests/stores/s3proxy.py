"""An S3 of this machine that keeps objects in files: s3proxy, whose code shares nothing with moto's."""

import http.client
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from databus.testing.servers._fetch import kept
from databus.testing.servers._java_server import fetch_jars, java
from databus.testing.servers._ports import Port
from tests.stores.store import BUCKET, KEY, SECRET, START_S_MAX, ObjectStore

_COORDINATES: Final = ("org.gaul:s3proxy:4.1.0", "com.fasterxml.jackson.core:jackson-annotations:2.21")
_SHA256: Final = "11ac9a471a3b1519305b422b1adfdffdb9fe52341011f50b9aecc0f49c004830"
_OPTIONS: Final = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_PROPERTIES: Final = """\
s3proxy.endpoint=http://127.0.0.1:{port}
s3proxy.authorization=aws-v2-or-v4
s3proxy.identity={key}
s3proxy.credential={secret}
jclouds.provider=filesystem-nio2
jclouds.identity=nobody
jclouds.credential=nothing
jclouds.filesystem.basedir={folder}
"""
_LOGBACK: Final = """\
<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %p %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""


@contextmanager
def s3proxy(folder: Path) -> Iterator[ObjectStore]:
    """A store with one empty bucket. Raises `ServerMissing`."""
    jars = kept("s3proxy-4.1.0-v1", lambda target: fetch_jars(_COORDINATES, _SHA256, target))
    port, objects = Port.claim(), folder / "objects"
    (objects / BUCKET).mkdir(parents=True)
    settings, logging, log = (folder / name for name in ("s3proxy.properties", "logback.xml", "s3proxy.log"))
    settings.write_text(_PROPERTIES.format(port=port.number, key=KEY, secret=SECRET, folder=objects))
    logging.write_text(_LOGBACK)
    command = [java(), *_OPTIONS, f"-Dlogback.configurationFile={logging}", "-cp", f"{jars}/*", "org.gaul.s3proxy.Main"]
    with log.open("wb") as said:
        process = subprocess.Popen([*command, "--properties", str(settings)], stdout=said, stderr=said)
    try:
        deadline = time.monotonic() + START_S_MAX
        while not _answers(port.number):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)  # it does not tell when it listens
        yield ObjectStore(f"http://127.0.0.1:{port.number}")
    finally:
        process.kill()
        process.wait()
        port.close()


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/")
        connection.getresponse().read()
    except OSError:
        return False
    finally:
        connection.close()
    return True
