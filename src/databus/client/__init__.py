"""Following a relay: windows as an iterator or as callbacks. Start with `windows`, then `Client` and `Consumer`."""

from databus.client._batches import Batcher, WindowBatch
from databus.client._checkpoints import Checkpoints, FileCheckpoints, MemoryCheckpoints, load_checkpoint
from databus.client._client import Client
from databus.client._client_config import ClientConfig, ClientState, SourceStatus
from databus.client._consumer import AnyWindow, Consumer, Result
from databus.client._dispatcher import Call, CallKind, ConsumerFailed, Dispatcher, callbacks_of
from databus.client._group_subscription import GroupSubscription, OnTake
from databus.client._letter_folder import ClientLetters
from databus.client._partition import Partition
from databus.client._rows import Row
from databus.client._splitter import Splitter, windows_of
from databus.client._subscription import Subscription
from databus.client._tail import tail_lines
from databus.client._window import Changes, ControlEvent, Window
from databus.client._windows import windows
from databus.link import (
    FollowConfig,
    FrameStream,
    Head,
    Range,
    RangeControl,
    ReaderState,
    RegisteredSchema,
    RelayClient,
    SourceInfo,
    Start,
)

__all__ = [
    "AnyWindow",
    "Batcher",
    "Call",
    "CallKind",
    "Changes",
    "Checkpoints",
    "Client",
    "ClientConfig",
    "ClientLetters",
    "ClientState",
    "Consumer",
    "ConsumerFailed",
    "ControlEvent",
    "Dispatcher",
    "FileCheckpoints",
    "FollowConfig",
    "FrameStream",
    "GroupSubscription",
    "Head",
    "MemoryCheckpoints",
    "OnTake",
    "Partition",
    "Range",
    "RangeControl",
    "ReaderState",
    "RegisteredSchema",
    "RelayClient",
    "Result",
    "Row",
    "SourceInfo",
    "SourceStatus",
    "Splitter",
    "Start",
    "Subscription",
    "Window",
    "WindowBatch",
    "callbacks_of",
    "load_checkpoint",
    "tail_lines",
    "windows",
    "windows_of",
]
