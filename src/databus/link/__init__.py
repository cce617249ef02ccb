"""The way to a relay: what it can be asked, its streams of frames, and following them. Start with `RelayClient`.

Below sources and relay, so that a source may read another relay. Windows are made of the frames in `databus.client`.
"""

from databus.link._answers import Head, Range, RangeControl, RegisteredSchema, SourceInfo
from databus.link._connection import TOO_LARGE, KeptConnection, NoAnswer, without_secrets
from databus.link._coordinator import CoordinatorClient, GroupAnswer, Groups
from databus.link._follow import Arrived, Channel, Connected, Ended, FollowConfig, Reader, ReaderState, Started
from databus.link._frame_stream import FrameStream
from databus.link._kafka_settings import wrong_kafka_setting
from databus.link._ranges import RangeReader, any_of, is_called, other_log, patiently
from databus.link._relay import ADDRESSES, LookBack, RelayClient, Start, addresses_of
from databus.link._schema_registry import RegistryAccess, RegistryOptions
from databus.link._tls import FILES_VARIABLE, Access, is_copy, last_renewal, travelling_name, write_renewal

__all__ = [
    "ADDRESSES",
    "FILES_VARIABLE",
    "TOO_LARGE",
    "Access",
    "Arrived",
    "Channel",
    "Connected",
    "CoordinatorClient",
    "Ended",
    "FollowConfig",
    "FrameStream",
    "GroupAnswer",
    "Groups",
    "Head",
    "KeptConnection",
    "LookBack",
    "NoAnswer",
    "Range",
    "RangeControl",
    "RangeReader",
    "Reader",
    "ReaderState",
    "RegisteredSchema",
    "RegistryAccess",
    "RegistryOptions",
    "RelayClient",
    "SourceInfo",
    "Start",
    "Started",
    "addresses_of",
    "any_of",
    "is_called",
    "is_copy",
    "last_renewal",
    "other_log",
    "patiently",
    "travelling_name",
    "without_secrets",
    "write_renewal",
    "wrong_kafka_setting",
]
