"""What comes into an output, as a plan says it: for tests that have no file."""

from databus.filters import TableChoice
from databus.pipeline.engine._handle import Brought
from databus.pipeline.engine._plan import OutputFeed, Way
from databus.pipeline.graph._graph import Step


def feed_of(*tables, output="outputs.copy", filters=()):
    """Tables by patterns, all by default, each of which is a selection of its own, through filters by their paths."""
    steps = tuple(Step(path, None) for path in filters)
    return OutputFeed(output, tuple(Way("inputs.shop", (TableChoice((each,)),), steps) for each in tables or ("*",)))


def bring(handle, *tables, way_of=lambda _: "", filters=()):
    """Have a handle know what comes of the physical source `shop`; returns that."""
    feed = feed_of(*tables, filters=filters)
    handle.brought = {"shop": Brought(feed, way_of)}
    return feed
