"""What tasks and the driver do with a mirror's files. Start with `rewrite`.

Tasks import this, and have neither Delta's library nor that of configuration: what the driver needs is in the modules.
"""

from databus.sinks.delta._layout import Layout, LiveFile, divided, live_files
from databus.sinks.delta._moves import plan
from databus.sinks.delta._rewrite import last_images, rewrite
from databus.sinks.delta._rewrite_job import run_all

__all__ = [
    "Layout",
    "LiveFile",
    "divided",
    "last_images",
    "live_files",
    "plan",
    "rewrite",
    "run_all",
]
