"""`windows`: following a relay window by window, alone or by name."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from databus.client._group_subscription import GroupSubscription, OnTake, group_terms
from databus.client._subscription import LateSubscription, Subscription, WantedSource, filtered, wanted_of
from databus.core import Checkpoint, InputError, Pair, SourceCheckpoint
from databus.filters import Columns
from databus.link import FollowConfig, RelayClient, Start


def windows(
    relay: RelayClient | str | Sequence[str],
    *,
    sources: Sequence[str] | None = None,
    start: Start = "beginning",
    checkpoint: Checkpoint | None = None,
    follow: bool = True,
    until: Mapping[str, Pair] | None = None,
    name: str | None = None,
    partitions: int = 1,
    guard: bool = False,
    on_take: OnTake | None = None,
    token: str | None = None,
    config: FollowConfig | None = None,
    where: str | None = None,
    columns: Columns | None = None,
    filters: Mapping[str, Mapping[str, Any]] | None = None,
    on_filter_change: Literal["snapshot", "stop"] | None = None,
    look_back: Literal["all"] | None = None,
) -> Subscription:
    """Follow a relay's sources, window by window.

    relay: an address, several of relays of one database (`["http://relay-a:11115", "http://relay-b:11115"]`), or a
    `RelayClient`, which takes files for `https://` and tokens.
    sources: names and patterns; None for all there are, with those whose database the relay could not reach so far.
    checkpoint: where to go on, for the physical sources in it; the others begin at `start`: `beginning`,
    `earliest`, `latest`, or a time (all that was committed then or later comes, perhaps with a little from before).
    follow: stay on for ever; else end at what is published now. until: by physical source, the (SCN, `_seq`) to end at;
    `SEQ_DONE` stands for a whole transaction.
    where, columns: only rows for which this condition holds, and only these columns, beside the key. filters: by table
    or pattern, `{"shop/main.orders": {"where": "total >= 100", "columns": ["id", "total"]}}`. A checkpoint is good at
    any filter. on_filter_change: see `FollowConfig`.
    look_back: where a bootstrap service gives what has left the relay's log, `all` has it give every change; by default
    it gives what became of them. `start="state"` begins with a state of that service, whatever the relay has.

    name: the relay keeps the checkpoint under this name; see `GroupSubscription`. A second process of the name waits
    until the first has gone. `start` and `checkpoint` count only when the name is used for the first time. partitions:
    among how many parts the keys are dealt, which the processes of the name share; also decided at the first time.
    guard: the relay keeps its log for this name beyond its retention, up to a bound. on_take: see `OnTake`.

    Raises `ServiceUnavailable` where the relay does not answer now; once it has, the iterator connects anew by itself.
    In an event loop the relay is asked by `async with`, so that is where it is raised. With a name the relay is waited
    for, and errors are raised where the first window is asked for.
    """
    if name is None and (partitions != 1 or guard or on_take is not None):
        raise InputError("partitions, guard and on_take are of a group; give it a name: name='billing'")
    client = relay if isinstance(relay, RelayClient) else RelayClient(relay, token=token, name=name)
    client = filtered(client, where, columns, filters)
    config = _configured(config, on_filter_change, look_back)

    def ask() -> tuple[list[WantedSource], dict[str, Pair]]:
        wanted, ends = wanted_of(client, sources), dict(until or {})
        for source in wanted if not follow else ():
            end = client.head(source.physical).published.pair if source.has_log else SourceCheckpoint().pair
            ends[source.physical] = min(end, ends.get(source.physical, end))
        return wanted, ends

    def arguments() -> dict[str, Any]:
        wanted, ends = ask()
        known = checkpoint.sources if checkpoint is not None else {}
        starts = {source.physical: known.get(source.physical) or source.begins_at(start) for source in wanted}
        how = {"until": ends, "carried": known, "config": config}
        return {"relay": client, "wanted": wanted, "starts": starts, **how}

    if name is not None:
        terms = group_terms(sources, client.filters, start, checkpoint, partitions, guard=guard)
        return GroupSubscription(client, name, terms, ask, on_take=on_take, config=config)
    return LateSubscription(arguments) if _is_in_event_loop() else Subscription(**arguments())


def _configured(
    config: FollowConfig | None, on_filter_change: Literal["snapshot", "stop"] | None, look_back: Literal["all"] | None
) -> FollowConfig | None:
    """The configuration with what was said beside it."""
    if on_filter_change is not None:
        config = replace(config or FollowConfig(), on_filter_change=on_filter_change)
    if look_back is not None:
        config = config or FollowConfig()
        config = replace(config, look_back=replace(config.look_back, every=True))
    return config


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
