"""Following a relay: windows as an iterator or as callbacks. Start with `windows`, then `Client` and `Consumer`."""

from databus.client._batches import Batcher, WindowBatch
from databus.client._follow import FollowConfig
from databus.client._relay import (
    FrameStream,
    Head,
    Range,
    RegisteredSchema,
    RelayClient,
    SourceInfo,
    Start,
)
from databus.client._rows import Row
from databus.client._subscription import Subscription, windows
from databus.client._window import Changes, ControlEvent, Splitter, Window, windows_of

__all__ = [
    "Batcher",
    "Changes",
    "ControlEvent",
    "FollowConfig",
    "FrameStream",
    "Head",
    "Range",
    "RegisteredSchema",
    "RelayClient",
    "Row",
    "SourceInfo",
    "Splitter",
    "Start",
    "Subscription",
    "Window",
    "WindowBatch",
    "windows",
    "windows_of",
]
