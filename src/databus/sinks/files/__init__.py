"""What tasks do for the output `files`: files that are not visible before they are whole. Start with `LooseWriter`."""

from databus.sinks.files._loose_files import LooseWriter

__all__ = [
    "LooseWriter",
]
