"""Which Java Spark will take."""

import os
import shutil
from pathlib import Path


def java_path() -> str | None:
    """That of JAVA_HOME if it is set, even if it names none, since Spark looks nowhere else then; else the one on the
    PATH. None if there is none.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        return str(java) if java.exists() else None
    return shutil.which("java")
