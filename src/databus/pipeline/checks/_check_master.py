"""What executors of the chosen master could not see or reach, each with what to write instead."""

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from databus.disk import is_uri
from databus.pipeline.graph import Kind, PipelineConfig, Problem

_MASTER: Final = re.compile(
    r"local(\[(\*|\d+)(, *\d+)?\])?|local-cluster\[\d+, *\d+, *\d+\]|yarn|spark://[^/\s]+:\d+(,[^/\s]+:\d+)*|k8s://\S+"
)
"""https://spark.apache.org/docs/latest/submitting-applications.html#master-urls"""

_STANDALONE: Final = "spark://"


def check_master(option: str | None, config: PipelineConfig) -> Iterator[Problem]:
    """option: what `--master` says, which wins."""
    written = config.sections.spark.master
    master, where = (written, "spark.master") if option is None else (option, "--master")
    if not _MASTER.fullmatch(master):
        yield Problem(
            where,
            f"{master!r} is none of Spark's masters: local[*], local[N], spark://HOST:PORT, yarn, k8s://HOST:PORT",
        )
    archive = config.sections.spark.archive
    if archive is not None and not (config.folder / archive).is_file():
        yield Problem(
            "spark.archive", f"{config.folder / archive}: there is no such file; `databus archive {archive}` makes it"
        )
    if config.sections.state is not None and is_uri(config.sections.state):
        yield Problem(
            "state",
            f"{config.sections.state} is no folder of this machine; locks, logs and checkpoints are there, which "
            "executors do not need. Write a path: where it is lost, the ledgers in the targets say where to go on",
        )
    if not _is_here(master):
        yield from _check_relay(config, master)
        yield from _check_paths(config, master)


def _is_here(master: str) -> bool:
    """Whether its executors are on this machine: a master that only this machine can reach has no others."""
    from databus.relay import is_loopback

    if master.startswith(_STANDALONE):
        hosts = (each.rpartition(":")[0] for each in master.removeprefix(_STANDALONE).split(","))
        return all(is_loopback(host.strip("[]")) for host in hosts)
    return master.startswith("local")


def unguarded(master: str, config: PipelineConfig) -> str | None:
    """What to say at the start where strangers can fetch the files that executors are sent; None where they cannot."""
    is_guarded = config.sections.spark.settings.get("spark.authenticate") == "true"
    if is_guarded or _is_here(master) or not config.access.options():
        return None
    return (
        "whoever reaches the driver's port can fetch what executors are sent, the relay's token and the key of the "
        "certificate too; have Spark let in only who knows a secret: spark.authenticate and spark.authenticate.secret"
    )


def _check_relay(config: PipelineConfig, master: str) -> Iterator[Problem]:
    from databus.relay import is_loopback

    if not any(node.plugin.needs_relay for node in config.nodes.values() if node.kind is Kind.INPUT):
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
        yield Problem("relay.listen", f"{host} tells executors no address to connect to; write this machine's own")


def _check_paths(config: PipelineConfig, master: str) -> Iterator[Problem]:
    for node in config.nodes.values():
        path = getattr(node.config, "path", None)
        is_plain = isinstance(path, str) and not is_uri(path) and not path.startswith("file:")
        if node.kind is Kind.OUTPUT and is_plain and getattr(node.config, "takes_stores", False):
            yield Problem(
                f"{node.path}.path",
                f"executors of {master} do not see folders of this machine; write the URI of a store, such as "
                f"s3://BUCKET/{path}, or file:///FOLDER for one that all machines have mounted there",
            )
