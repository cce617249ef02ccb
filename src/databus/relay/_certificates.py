"""The relay's certificate: read from its files, and again when they change, so that a running relay gets a new one."""

import ssl
from pathlib import Path
from typing import Final

from databus.core import ConfigError
from databus.disk import is_readable_by_all
from databus.operate import logger_of
from databus.relay._config import TlsConfig

LOOK_S: Final = 2.0
"""How often the files are looked at."""

_State = tuple[int, int, int] | None
_logger = logger_of("databus.relay")


class RelayCertificates:
    """What each new connection is shown. `renew` may be called by another thread than uses `context`.

    Connections that stand keep what they were shown.
    """

    def __init__(self, config: TlsConfig) -> None:
        """Read the files. Raises `ConfigError` that names the one that is wrong."""
        self._config = config
        self._files = [path for path in (config.certificate_file, config.key_file, config.client_ca_file) if path]
        self._seen = [state_of(path) for path in self._files]
        self.context = _context_of(config)
        if is_readable_by_all(config.key_file):
            _logger.warning(
                "every user of this machine can read the relay's key; take the right away: chmod o= FILE",
                file=str(config.key_file),
            )

    def renew(self) -> None:
        """Read the files again if they have changed. What is no good (yet) is not used: a file that is half written
        must not shut everybody out. So an authority is trusted until a file without it can be read.
        """
        seen = [state_of(path) for path in self._files]
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self.context = _context_of(self._config)
        except ConfigError as error:
            _logger.warning(
                "the relay's certificate files have changed and cannot be used; what it shows and whom it trusts stay",
                message=str(error),
            )
        else:
            _logger.info("the relay's certificate has been read again", file=str(self._config.certificate_file))


def state_of(path: Path) -> _State:
    """What tells that a file has been changed or replaced; None where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_ctime_ns, stat.st_size  # of its rights, too


def _context_of(config: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # a client could make us compute for ever
    context.num_tickets = 0  # no session of TLS 1.3 is resumed; `Tls` refuses to resume those of 1.2
    certificate, key = config.certificate_file, config.key_file
    for name, path in (("certificate_file", certificate), ("key_file", key), ("client_ca_file", config.client_ca_file)):
        _check_readable(name, path)
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        if "MISMATCH" in (error.reason or ""):
            raise ConfigError(f"tls.key_file: {key} is not the key of the certificate in {certificate}") from error
        raise ConfigError(
            f"tls: {certificate} and {key} do not hold a certificate and its key in PEM: {error.reason or error}"
        ) from error
    if config.client_ca_file is not None:
        try:
            context.load_verify_locations(config.client_ca_file)
        except ssl.SSLError as error:
            raise ConfigError(
                f"tls.client_ca_file: {config.client_ca_file} holds no certificate in PEM: {error.reason or error}"
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _check_readable(name: str, path: Path | None) -> None:
    if path is None:
        return
    try:
        path.open("rb").close()
    except OSError as error:
        raise ConfigError(f"tls.{name}: {path}: {error.strerror}") from error


def _no_password() -> str:
    raise ConfigError(
        "tls.key_file: the key is encrypted, and a relay cannot ask for its password; store it without one "
        "(openssl pkey -in KEY -out NEW_KEY) where only the relay's user can read it"
    )
