"""What can be known to be wrong, before anything is bound, with the address where a run answers over HTTP."""

import ipaddress
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from databus.core import ConfigError
from databus.pipeline.graph import PipelineConfig, Problem

_NAME: Final = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*"
)
_ANY: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to


def check_http(address: str, where: str, config: PipelineConfig) -> Iterator[Problem]:
    """An address that is none, that its relay has, or that strangers reach. where: in the file, or the option."""
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

    problems = [str(each) for each in check_http(address, where, config)]
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
    """Where the relay listens, as far as the file says it; port 0 is none yet."""
    from databus.relay import address_of

    try:
        if config.relay.url is None:
            return address_of(config.relay.listen) if config.embeds_relay else None
        url = urlsplit(config.relay.url)
        return url.hostname or "", url.port or 80
    except ValueError:  # told of by the check of the relay
        return None


def _meet(one: str, other: str) -> bool:
    """Whether what is bound to both may be the same address of this machine."""
    from databus.relay import is_loopback

    hosts = {one.lower(), other.lower()}
    return len(hosts) == 1 or bool(hosts & _ANY) or all(is_loopback(each) for each in hosts)
