"""Which relay a command asks: the one that is named, that of a file, or the one of this machine."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from databus.cli._app import DEFAULT_RELAY, CaFile, CertificateFile, FromEnvironment, KeyFile, RelayUrl, TokenFile
from databus.cli._file import DEFAULT_FILE, FileOfRelay

if TYPE_CHECKING:
    from databus.link import Access, RelayClient


@dataclass(frozen=True)
class AskedRelay:
    """Where a relay answers and how it is asked."""

    url: str
    access: "Access"
    """Token and certificates."""
    option: str
    """The options by which a further command asks the same relay."""

    def client(self, **settings: Any) -> "RelayClient":
        """A client of this relay."""
        from databus.link import RelayClient

        return RelayClient(self.url, access=self.access, **settings)


AskRelay = Callable[[], AskedRelay]
"""A command's relay, looked for when it is called: what is wrong with the command's other words is said before."""

_OPTIONS: Final = {
    "file": FileOfRelay,
    "relay": RelayUrl,
    "token_file": TokenFile,
    "ca_file": CaFile,
    "certificate_file": CertificateFile,
    "key_file": KeyFile,
}


def asks_relay(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options that say which relay is asked, in the place of its parameter `ask: Ask`."""

    @wraps(command)
    def with_options(**given: Any) -> None:
        which = [given.pop(name) for name in _OPTIONS]
        command(**given, ask=partial(relay_of, *which))

    signature = inspect.signature(command)
    keyword = Parameter.KEYWORD_ONLY
    options = [Parameter(name, keyword, default=None, annotation=kind) for name, kind in _OPTIONS.items()]
    parameters: list[Parameter] = []
    for parameter in signature.parameters.values():
        parameters += options if parameter.name == "ask" else [parameter.replace(kind=keyword)]
    # What typer reads. mypy knows no such attribute of functions; it is where `inspect` documents it.
    with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_options


def relay_of(file: Path | None, url: str | None, *files: str | None) -> AskedRelay:
    """The relay at `url`, else that of `file` or of `databus.yml`, else the default. A file that is named goes before
    an address of the environment: whoever names one means its relay.

    files: of the token, the authority, the certificate and its key, as the command was given them; without any, those
    that the file names. Raises `ServiceUnavailable` for a file whose relay does not run.
    """
    from databus.core import ConfigError, ServiceUnavailable
    from databus.link import Access

    given = Access.of(*files)
    if file is not None and not file.exists():  # also where it is not needed: it may be a misspelt word of another kind
        raise ConfigError(f"{file}: No such file or directory")
    if url is not None and not (file is not None and isinstance(url, FromEnvironment)):
        return AskedRelay(url, given, f" --relay {url}")
    if file is None and not DEFAULT_FILE.is_file():
        return AskedRelay(DEFAULT_RELAY, given, "")
    path = file or DEFAULT_FILE
    address, access = _in_file(path)
    if address is None:
        raise ServiceUnavailable(
            f"{path}: its relay does not run, so where it answers is not known. Start it with `databus run`, or with "
            f"`databus relay` if this is a relay's file; or name the relay by --relay"
        )
    return AskedRelay(address, given if any(files) else access, "" if file is None else f" {file}")


def _in_file(path: Path) -> "tuple[str | None, Access]":
    from databus.cli._configured import is_pipeline
    from databus.link import Access

    if is_pipeline(path):
        from databus.pipeline import relay_at

        return relay_at(path)
    from databus.relay import load_relay, told_url

    relay = load_relay(path)
    return told_url(relay.folder), Access.of(relay.operator_token_file)
