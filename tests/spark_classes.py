"""What each Java that the tests start is told, inside the processes of databus too: to start sooner, and run slower."""

from databus.spark import class_file

OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def java_options() -> str:
    """With Spark's classes, where `databus warm-up` has written them. Java says on stdout that they do not fit, and so
    must not log.
    """
    path = class_file()
    return f"{OPTIONS} -Xlog:disable -XX:SharedArchiveFile={path}" if path is not None and path.is_file() else OPTIONS
