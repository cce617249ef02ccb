"""Checks of single options for what cannot work or is probably a mistake; without Spark.

`spark.settings`, of which Spark accepts any name without a word; compacted targets; the address of a run; targets in
stores and on this machine's disks; and folders within folders.
"""

import difflib
import ipaddress
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from databus.core import ConfigError, DatabusError, is_pattern
from databus.disk import LocalLocation, Location, Storage, StoreLocation, is_uri, locate
from databus.filters import may_select, patterns_meet, patterns_of
from databus.pipeline.engine import Ledger, ledger_path, plan_queries, way_of, why_stopped
from databus.pipeline.graph import Branch, Graph, NodeKind, NodeSpec, PipelineConfig, Problem, physicals_of
from databus.plugins import KeepsLedger, Output, Shape

_OURS: Final[Mapping[str, str]] = {"spark.master": "spark.master of this file", "spark.app.name": "the pipeline's name"}
_BYTES: Final = re.compile(r"[0-9]+[kmgtp]?b?", re.IGNORECASE)
_NUMBER: Final = re.compile(r"[0-9]+")
_NEAR: Final = 0.9

_SETTINGS: Final[Mapping[str, re.Pattern[str] | None]] = {
    **dict.fromkeys(
        (
            "spark.driver.maxResultSize",
            "spark.driver.memory",
            "spark.driver.memoryOverhead",
            "spark.executor.memory",
            "spark.executor.memoryOverhead",
            "spark.executor.pyspark.memory",
            "spark.memory.offHeap.size",
        ),
        _BYTES,
    ),
    **dict.fromkeys(
        (
            "spark.cores.max",
            "spark.default.parallelism",
            "spark.driver.cores",
            "spark.driver.port",
            "spark.dynamicAllocation.initialExecutors",
            "spark.dynamicAllocation.maxExecutors",
            "spark.dynamicAllocation.minExecutors",
            "spark.executor.cores",
            "spark.executor.instances",
            "spark.sql.execution.arrow.maxRecordsPerBatch",
            "spark.sql.shuffle.partitions",
            "spark.task.cpus",
            "spark.task.maxFailures",
        ),
        _NUMBER,
    ),
    **dict.fromkeys(
        (
            "spark.authenticate",
            "spark.driver.bindAddress",
            "spark.driver.extraClassPath",
            "spark.driver.extraJavaOptions",
            "spark.driver.host",
            "spark.dynamicAllocation.enabled",
            "spark.eventLog.dir",
            "spark.eventLog.enabled",
            "spark.executor.extraClassPath",
            "spark.executor.extraJavaOptions",
            "spark.executor.heartbeatInterval",
            "spark.jars",
            "spark.jars.ivy",
            "spark.jars.packages",
            "spark.jars.repositories",
            "spark.kubernetes.container.image",
            "spark.kubernetes.namespace",
            "spark.local.dir",
            "spark.locality.wait",
            "spark.memory.fraction",
            "spark.memory.offHeap.enabled",
            "spark.memory.storageFraction",
            "spark.metrics.namespace",
            "spark.network.timeout",
            "spark.pyspark.driver.python",
            "spark.pyspark.python",
            "spark.python.worker.memory",
            "spark.python.worker.reuse",
            "spark.scheduler.mode",
            "spark.serializer",
            "spark.sql.adaptive.enabled",
            "spark.sql.execution.arrow.pyspark.enabled",
            "spark.sql.extensions",
            "spark.sql.session.timeZone",
            "spark.sql.streaming.metricsEnabled",
            "spark.sql.streaming.minBatchesToRetain",
            "spark.sql.streaming.noDataMicroBatches.enabled",
            "spark.sql.streaming.stopTimeout",
            "spark.sql.warehouse.dir",
            "spark.submit.deployMode",
            "spark.submit.pyFiles",
            "spark.ui.enabled",
            "spark.ui.port",
            "spark.ui.showConsoleProgress",
            "spark.yarn.queue",
        ),
        None,
    ),
}
"""Settings that pipelines often use, and the form of their values. Spark has a thousand others."""


def check_settings(settings: Mapping[str, str]) -> Iterator[Problem]:
    """Names that Spark ignores, names that differ a little from those of settings, and invalid values."""
    for name, value in settings.items():
        where = f"spark.settings.{name}"
        close = difflib.get_close_matches(name, _SETTINGS, 1, _NEAR)
        if name in _OURS:
            yield Problem(where, f"comes from {_OURS[name]}; leave it out here")
        elif not name.startswith("spark."):
            likely = difflib.get_close_matches(f"spark.{name}", _SETTINGS, 1, _NEAR)
            hint = f'; did you mean "{likely[0]}"?' if likely else ""
            yield Problem(where, f"Spark ignores settings whose names do not begin with `spark.`{hint}")
        elif close and close[0] != name and name not in _SETTINGS:
            yield Problem(where, f'did you mean "{close[0]}"? Spark accepts any name', is_warning=True)
        pattern = _SETTINGS.get(name)
        if pattern is not None and not pattern.fullmatch(value):
            kind = "a whole number" if pattern is _NUMBER else "a size, such as 512m or 2g"
            yield Problem(where, f'"{value}" is not {kind}')


# Compacted targets with rows of several tables: rows with equal keys would replace each other.


def check_compacted(graph: Graph, node: NodeSpec, branches: Sequence[Branch]) -> Iterator[Problem]:
    """Warn if the name of such a target is the same for several physical sources, or tables."""
    physicals = {name for branch in branches for name in physicals_of(graph, branch) or ()}
    many = any(branch.shape is Shape.TABLES and is_many(branch) for branch in branches) or len(branches) > 1
    for template in dict.fromkeys(node.config.compacts_in):
        if len(physicals) > 1 and "{physical}" not in template:
            meeting, place = f"tables of {' and '.join(sorted(physicals))} that have one name", "`{physical}`"
        elif many and "{table}" not in template and template == next(iter(node.config.compacts_in)):
            meeting, place = "several tables", "`{table}`"
        else:
            continue
        yield Problem(
            f"{node.path}.topic",
            f"{meeting} would meet in a compacted topic, where a row replaces one of another table with the same key; "
            f"put {place} into {template}",
            is_warning=True,
        )


def is_many(branch: Branch) -> bool:
    """Whether a branch may carry more than one table."""
    patterns = patterns_of(branch.selection)
    return len(patterns) > 1 or is_pattern(patterns[0])


_NAME: Final = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*"
)
_ANY: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to


def check_http(address: str, where: str, config: PipelineConfig) -> Iterator[Problem]:
    """An address that is invalid, that the relay has, or that is open to other machines. where: of the address."""
    from databus.relay import address_of, is_loopback

    try:
        host, port = address_of(address)
    except ValueError:
        yield Problem(where, f'expected HOST:PORT, such as 127.0.0.1:11116, with a port up to 65535; found "{address}"')
        return
    if not _is_host(host):
        yield Problem(where, f'"{host}" is neither an IP address nor the name of a machine; write HOST:PORT alone')
        return
    relay = _relay_at(config)
    if relay is not None and port and port == relay[1] and _meet(host, relay[0]):
        yield Problem(where, f"{address} is where the relay listens ({':'.join(map(str, relay))}); choose another port")
    if not is_loopback(host) and config.token_file is None:
        yield Problem(
            where, f"{host} can be reached from other machines; set relay.token_file, or serve at 127.0.0.1:{port}"
        )


def http_address(address: str, where: str, config: PipelineConfig) -> tuple[str, int]:
    """Host and port to bind to. Raises `ConfigError`."""
    from databus.relay import address_of

    problems = [str(problem) for problem in check_http(address, where, config)]
    if problems:
        raise ConfigError("\n".join(problems))
    return address_of(address)


def _is_host(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        looks_like_numbers = host.replace(".", "").isdigit()
        return _NAME.fullmatch(host) is not None and not looks_like_numbers
    return True


def _relay_at(config: PipelineConfig) -> tuple[str, int] | None:
    """Where the relay listens, if the file says it."""
    from databus.relay import address_of

    try:
        if config.relay.url is None:
            return address_of(config.relay.listen) if config.embeds_relay else None
        url = urlsplit(config.relay.url)
        return url.hostname or "", url.port or 80
    except ValueError:  # the check of the relay reports it
        return None


def _meet(first: str, other: str) -> bool:
    """Whether both may be the same address of this machine."""
    from databus.relay import is_loopback

    hosts = {first.lower(), other.lower()}
    return len(hosts) == 1 or bool(hosts & _ANY) or all(is_loopback(host) for host in hosts)


def check_path(node: NodeSpec, config: PipelineConfig) -> Iterator[Problem]:
    """A `path` that its output cannot write to, without asking a store."""
    path, where = node.config.path, f"{node.path}.path"
    is_file = path.startswith("file:")
    if (is_uri(path) or is_file) and not getattr(node.config, "takes_stores", False):
        yield Problem(where, f"{path} is not a folder; {node.type} writes to folders of this machine, mounted ones too")
        return
    from databus.sinks import path_of, root_of

    try:
        place = root_of(path, config.context_of(node.name))
        if isinstance(place, StoreLocation):
            place.open()
            path_of(path, config.context_of(node.name), "shop", "main.orders")
    except ConfigError as error:
        yield Problem(where, str(error))


def check_stores(config: PipelineConfig) -> Iterator[Problem]:
    """Stores that do not answer or refuse access. Each is asked once."""
    from databus.sinks import root_of

    asked: dict[str, str] = {}
    for node in config.outputs.values():
        path = getattr(node.config, "path", None)
        if not isinstance(path, str) or any(check_path(node, config)):
            continue
        place = root_of(path, config.context_of(node.name))
        message = asked[str(place)] if str(place) in asked else _trouble_with(place)
        asked[str(place)] = message
        if message:
            yield Problem(f"{node.path}.path", message)


def _trouble_with(place: Location) -> str:
    try:
        place.check()
    except DatabusError as error:
        return str(error).removesuffix("; this is tried again")
    return ""


def check_targets(graph: Graph) -> Iterator[Problem]:
    """Folders and ledgers of a graph without problems. Nothing is written."""
    config = graph.config
    yield from _check_folder("state", config.state)
    if config.embeds_relay:
        yield from _check_folder("relay.folder", config.relay_folder)
    for node in config.outputs.values():
        output = config.output_of(node.name)
        folder = output.ledger_folder() if isinstance(output, KeepsLedger) else None
        wrong = [*_check_folder(f"{node.path}.path", folder)] if isinstance(folder, LocalLocation | Path) else []
        yield from wrong or _check_ways(graph, node, output)


def _check_folder(where: str, folder: LocalLocation | Path) -> Iterator[Problem]:
    """A folder that cannot be made, or cannot be written to."""
    path = Path(folder)
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    if not existing.is_dir():
        yield Problem(where, f"{existing} is a file, not a folder")
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield Problem(where, f"{existing}: this user may not write there")


def _check_ways(graph: Graph, node: NodeSpec, output: Output) -> Iterator[Problem]:
    """A ledger that cannot be read, or whose rows were made by other filters."""
    config = graph.config
    path = ledger_path(output, config.state)
    if not isinstance(path, LocalLocation):
        return
    try:
        ledger = Ledger.load(path, config.name, node.name)
    except DatabusError as error:
        yield Problem(node.path, str(error))
        return
    changed: set[str] = set()
    # The ledger names the sources of a relay elsewhere, which the file does not.
    for plan in plan_queries(graph, sorted({*config.sources, *ledger.positions})):
        feed = plan.feed_of(node.path)
        if feed is not None:
            way = way_of(graph, feed, output)
            changed |= {name for name in ledger.written(feed.choice) if ledger.way_of(name) not in ("", way(name))}
    if changed and node.config.on_change == "stop":
        yield Problem(node.path, why_stopped(node.name, [*changed]))


# Folders within folders: a table's folder belongs to its output alone, which removes all of it in a rebuild.


_PLACEHOLDER: Final = re.compile(r"\{(physical|db|table)\}")
_NO_DOT: Final = "[^./]+"  # a folder such as `.databus` does not count as a table's


def check_nested(graph: Graph, outputs: Sequence[NodeSpec], branches: Mapping[str, list[Branch]]) -> Iterator[Problem]:
    """Outputs and folders of the pipeline that may be in the folder of a table. branches: of outputs, by path."""
    config = graph.config
    own = {"state": config.state, **({"relay.folder": config.relay_folder} if config.embeds_relay else {})}
    folders = {node.path: _parts_of(config.folder, node.config.path) for node in outputs}
    for outer, inner in permutations(outputs, 2):
        if len(folders[inner.path]) > len(folders[outer.path]):
            named = _names_where_inside(folders[inner.path], folders[outer.path])
            if named is not None and all(
                _may_come(graph, branches[node.path], names) for node, names in zip((inner, outer), named, strict=True)
            ):
                yield _problem(f"{inner.path}.path", inner.config.path, outer)
    for outer in outputs:
        for where, folder in own.items():
            named = _names_where_inside(os.path.realpath(folder).split("/"), folders[outer.path])
            if named is not None and _may_come(graph, branches[outer.path], named[1]):
                yield _problem(where, str(folder), outer)


def _problem(where: str, folder: str, outer: NodeSpec) -> Problem:
    return Problem(
        where,
        f"{folder} may be in the folder of a table of {outer.path} ({outer.config.path}), which is removed when that "
        "is rebuilt; name a folder beside it",
    )


def _parts_of(folder: Path, template: str) -> list[str]:
    """The parts of the folders of an output's tables, however these are spelt."""
    return real_path(folder, template if "{" in template else f"{template.rstrip('/')}/{{table}}").split("/")


def real_path(folder: Path, template: str) -> str:
    """A template's folder however it is spelt: relative or not, by `..`, through symbolic links."""
    try:
        place = locate(template.rstrip("/"), folder, Storage())
    except ConfigError:  # `check_path` reports it
        return template
    return os.path.realpath(place) if isinstance(place, LocalLocation) else str(place)


def _names_where_inside(inner: Sequence[str], outer: Sequence[str]) -> tuple[dict[str, str], dict[str, str]] | None:
    """The names of the two tables, or patterns of them, for which one folder is the other or in it; None if it never
    is.
    """
    if len(inner) < len(outer):
        return None
    names: tuple[dict[str, str], dict[str, str]] = {}, {}
    for inner_part, theirs in zip(inner, outer, strict=False):
        if inner_part == theirs:
            continue
        both = [(1, theirs, _PLACEHOLDER.sub("*", inner_part)), (0, inner_part, _PLACEHOLDER.sub("*", theirs))]
        matching = [(at, match) for at, template, part in both if (match := _pattern(template).fullmatch(part))]
        if not matching and not (_PLACEHOLDER.search(inner_part) and _PLACEHOLDER.search(theirs)):
            return None
        for at, match in matching[:1]:
            for name, value in match.groupdict().items():
                if names[at].setdefault(name, value) != value and "*" not in value + names[at][name]:
                    return None
    return names


def _pattern(template: str) -> re.Pattern[str]:
    """A pattern for the folders that a part of a template makes."""
    regex, seen = "", set[str]()
    for number, piece in enumerate(_PLACEHOLDER.split(template)):
        if number % 2 == 0:
            regex += re.escape(piece)
        else:
            regex += f"(?P={piece})" if piece in seen else f"(?P<{piece}>{_NO_DOT})"
            seen.add(piece)
    return re.compile(regex)


def _may_come(graph: Graph, branches: Sequence[Branch], names: Mapping[str, str]) -> bool:
    """Whether a table with these names may reach an output."""
    pattern = "{physical}/{db}.{table}".format_map({"physical": "*", "db": "*", "table": "*", **names})
    return any(
        (branch.table is None or patterns_meet(branch.table, pattern))
        and may_select(branch.selection, pattern)
        and ("physical" not in names or names["physical"] in (physicals_of(graph, branch) or [names["physical"]]))
        for branch in branches
    )


_MASTER: Final = re.compile(
    r"local(\[(\*|\d+)(, *\d+)?\])?|local-cluster\[\d+, *\d+, *\d+\]|yarn|spark://[^/\s]+:\d+(,[^/\s]+:\d+)*|k8s://\S+"
)
"""https://spark.apache.org/docs/latest/submitting-applications.html#master-urls"""

_STANDALONE: Final = "spark://"


def check_master(option: str | None, config: PipelineConfig) -> Iterator[Problem]:
    """option: that of `--master`, which wins."""
    written = config.sections.spark.master
    master, where = (written, "spark.master") if option is None else (option, "--master")
    if not _MASTER.fullmatch(master):
        yield Problem(
            where,
            f"{master!r} is not a master of Spark: local[*], local[N], spark://HOST:PORT, yarn, k8s://HOST:PORT",
        )
    archive = config.sections.spark.archive
    if archive is not None and not (config.folder / archive).is_file():
        yield Problem(
            "spark.archive", f"{config.folder / archive}: there is no such file; `databus archive {archive}` makes it"
        )
    if config.sections.state is not None and is_uri(config.sections.state):
        yield Problem(
            "state",
            f"{config.sections.state} is not a folder of this machine; it holds locks, logs and checkpoints, which "
            "executors do not need. Write a path: if it is lost, the ledgers in the targets say where to continue",
        )
    if not _is_here(master):
        yield from _check_relay(config, master)
        yield from _check_paths(config, master)


def _is_here(master: str) -> bool:
    """Whether its executors are on this machine. A master that only this machine can reach has no others."""
    from databus.relay import is_loopback

    if master.startswith(_STANDALONE):
        hosts = (part.rpartition(":")[0] for part in master.removeprefix(_STANDALONE).split(","))
        return all(is_loopback(host.strip("[]")) for host in hosts)
    return master.startswith("local")


def unguarded(master: str, config: PipelineConfig) -> str | None:
    """A warning if other machines can fetch the files that are sent to executors."""
    is_guarded = config.sections.spark.settings.get("spark.authenticate") == "true"
    if is_guarded or _is_here(master) or not config.access.options():
        return None
    return (
        "whoever reaches the driver's port can fetch what is sent to executors, including the relay's token and the "
        "key of the certificate; have Spark ask for a secret: spark.authenticate and spark.authenticate.secret"
    )


def _check_relay(config: PipelineConfig, master: str) -> Iterator[Problem]:
    from databus.relay import is_loopback

    if not any(node.plugin.needs_relay for node in config.nodes.values() if node.kind is NodeKind.INPUT):
        return
    relay = config.relay
    if relay.url is not None and is_loopback(urlsplit(relay.url).hostname or ""):
        yield Problem(
            "relay.url",
            f"executors of {master} are on other machines, where {relay.url} is not this relay; have it listen on an "
            "address of its machine, with a token, and write that one",
        )
    if not config.sources:
        return
    host = relay.listen.rpartition(":")[0]
    if is_loopback(host):
        yield Problem(
            "relay.listen",
            f"executors of {master} cannot reach a relay on {host}; listen on an address of this machine and set "
            "`token_file`, or name a relay that runs elsewhere (`relay: {url: ...}`)",
        )
    elif host in ("0.0.0.0", "::"):  # noqa: S104 - looked for, not bound to
        yield Problem(
            "relay.listen", f"{host} is not an address that executors can connect to; write this machine's own"
        )


def _check_paths(config: PipelineConfig, master: str) -> Iterator[Problem]:
    for node in config.outputs.values():
        path = getattr(node.config, "path", None)
        is_plain = isinstance(path, str) and not is_uri(path) and not path.startswith("file:")
        if is_plain and getattr(node.config, "takes_stores", False):
            yield Problem(
                f"{node.path}.path",
                f"executors of {master} do not see folders of this machine; write the URI of a store, such as "
                f"s3://BUCKET/{path}, or file:///FOLDER for one that all machines have mounted there",
            )
