"""How changes are read: one folder per database, each a `Source`. Start with `databus.sources._contract`."""

from databus.sources._contract import Identity, Resume, Source, SourceLag

__all__ = ["Identity", "Resume", "Source", "SourceLag"]
