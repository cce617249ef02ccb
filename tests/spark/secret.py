"""Run as a program: starts a session with a secret among its settings, and prints what others see of its JVM."""

import json
import sys
from pathlib import Path
from subprocess import Popen

from databus.spark import tuned_session

NAME = "spark.hadoop.fs.s3a.secret.key"
processes: list[Popen[bytes]] = []
session = tuned_session(
    "secret",
    "local[1]",
    folder=Path(sys.argv[1]),
    settings={NAME: "not for everybody", "spark.driver.memory": "512m"},
    on_process=processes.append,
)
arguments = Path(f"/proc/{processes[0].pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
setting = session.sparkContext._jsc.hadoopConfiguration().get("fs.s3a.secret.key")
session.stop()
sys.stdout.write(json.dumps({"arguments": arguments, "setting": setting}) + "\n")
