"""TLS to a relay: what a client trusts and shows, and what each failure means. The name is always verified.

A mistake in a configuration is an `InputError` and ends who asks. What somebody else may put right while we wait, a
certificate that has expired first of all, is `ServiceUnavailable`: it is asked again, as a relay that is down is.
"""

import hashlib
import json
import os
import re
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final, Self, TypeVar

from databus.core import AccessDenied, ConfigError, DatabusError, ServiceUnavailable

CA_VARIABLE: Final = "DATABUS_CA_FILE"
CERTIFICATE_VARIABLE: Final = "DATABUS_CERTIFICATE_FILE"
KEY_VARIABLE: Final = "DATABUS_KEY_FILE"
FILES_VARIABLE: Final = "DATABUS_FILES"
"""Names the folder of files that came with a job of Spark; see `FilesHere`."""

_SETTLED_S: Final = 1.0
_CHANGES_S_MAX: Final = 10.0
_LOOK_S: Final = 0.05
_RENEWAL: Final = "databus-renewal-"
_COPY: Final = re.compile(r"databus-[0-9a-f]{16}-")
_HOW_TO_TRUST: Final = f"`ca_file` (at the command line --ca-file, in the environment {CA_VARIABLE})"
_HOW_TO_SHOW: Final = (
    f"`certificate_file` and `key_file` (at the command line --certificate-file and --key-file, in the environment "
    f"{CERTIFICATE_VARIABLE} and {KEY_VARIABLE})"
)
_EXPIRED, _NOT_YET = 10, 9
_WRONG_NAME: Final = frozenset({62, 64})  # a host's name, an address
_UNKNOWN_CA: Final = frozenset({2, 18, 19, 20, 21, 27})
_NO_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"}
)
_OLD_TLS: Final = frozenset({"UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION", "NO_PROTOCOLS_AVAILABLE"})
_WANTS_CERTIFICATE: Final = frozenset({"TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_HANDSHAKE_FAILURE"})
_REFUSED: Final = frozenset(
    {
        "SSLV3_ALERT_BAD_CERTIFICATE", "SSLV3_ALERT_CERTIFICATE_REVOKED", "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE", "TLSV1_ALERT_ACCESS_DENIED", "TLSV1_ALERT_DECRYPT_ERROR",
        "TLSV1_ALERT_UNKNOWN_CA",
    }
)  # fmt: skip
_REFUSED_AS_EXPIRED: Final = "SSLV3_ALERT_CERTIFICATE_EXPIRED"

T = TypeVar("T")


def travelling_name(path: Path, renewal: int = 0) -> str:
    """What a file of this path is called where it is sent to other machines: another name for each path and renewal."""
    mark = hashlib.sha256(str(path).encode()).hexdigest()[:16]
    return f"databus-{mark}-{path.name}" if renewal == 0 else f"databus-{mark}-{renewal}-{path.name}"


def write_renewal(folder: Path, renewal: int, copies: Iterable[Path]) -> Path:
    """Write the file that is sent with the copies of a renewal, and says which they are and how long: an executor
    fetches files in any order, while other tasks run, and these count once all are there.
    """
    sizes = {copy.name: copy.stat().st_size for copy in copies}
    mark = folder / f"{_RENEWAL}{renewal}"
    mark.write_text(json.dumps(sizes), encoding="utf-8")
    return mark


def last_renewal(folder: Path) -> int:
    """How often the files that came with a job were renewed, as far as the renewed ones have come whole."""
    marks = ((mark, mark.name.removeprefix(_RENEWAL)) for mark in folder.glob(f"{_RENEWAL}*"))
    return max((int(number) for mark, number in marks if number.isdecimal() and _has_come(mark)), default=0)


def _has_come(mark: Path) -> bool:
    try:
        sizes = json.loads(mark.read_bytes())
        return all((mark.parent / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):  # it may be half a file itself
        return False


def is_copy(path: Path) -> bool:
    """Whether a file's name is one that `travelling_name` or `write_renewal` gives."""
    return path.name.startswith(_RENEWAL) or _COPY.match(path.name) is not None


@dataclass(frozen=True, slots=True)
class FilesHere:
    """What came with a job of Spark, as it is now: files that belong together are found by one of these."""

    folder: Path | None
    renewal: int
    are_copies_first: bool = False

    @classmethod
    def now(cls) -> Self:
        """As the environment says."""
        folder = os.environ.get(FILES_VARIABLE)
        return cls(None, 0) if folder is None else cls(Path(folder), last_renewal(Path(folder)))

    @classmethod
    def read(cls, read: Callable[[Self], T]) -> T:
        """What is read from this machine's files. While one of them is being replaced they do not go together: then
        from the copies that came with a job, which do. Raises `ConfigError`.
        """
        here = cls.now()
        try:
            return read(here)
        except ConfigError:
            if here.folder is None:
                raise
            return read(replace(here, are_copies_first=True))

    def of(self, path: Path) -> Path:
        """The file of this path or, where this machine has none and a copy came with the job, the copy sent last."""
        if self.folder is None or (path.exists() and not self.are_copies_first):
            return path
        copy = self.folder / travelling_name(path, self.renewal)
        return copy if copy.exists() else path


@dataclass(frozen=True, slots=True)
class Access:
    """With which files a relay is asked. They are read for each connection, so what is in them can be renewed."""

    token_file: Path | None = None
    """Holds the relay's token."""
    ca_file: Path | None = None
    """Certificates in PEM of the authorities that may have signed the relay's, instead of those that this machine
    trusts.
    """
    certificate_file: Path | None = None
    """What is shown to a relay that wants to see a certificate."""
    key_file: Path | None = None
    """Of that certificate; it may be in the same file."""

    @classmethod
    def of(
        cls,
        token_file: str | Path | None = None,
        ca_file: str | Path | None = None,
        certificate_file: str | Path | None = None,
        key_file: str | Path | None = None,
    ) -> Self:
        """The same from names of files."""
        given = (token_file, ca_file, certificate_file, key_file)
        return cls(*(None if name is None else Path(name) for name in given))

    def options(self) -> dict[str, str]:
        """The names of those that are given, as `of` takes them."""
        given = {
            "token_file": self.token_file,
            "ca_file": self.ca_file,
            "certificate_file": self.certificate_file,
            "key_file": self.key_file,
        }
        return {name: str(path) for name, path in given.items() if path is not None}

    def mistake(self, *, is_tls: bool) -> str | None:
        """What does not go together, and what to do. is_tls: whether the relay's address is `https://`."""
        if self.key_file is not None and self.certificate_file is None:
            return f"key_file {self.key_file}: whose key? give certificate_file too"
        given = [name for name in self.options() if name != "token_file"]
        if given and not is_tls:
            return f"{given[0]} is of use with TLS only; ask the relay by https://, or leave it out"
        return None

    def with_environment(self) -> Self:
        """With the environment's variables for TLS where nothing is given."""
        if self.certificate_file is None:
            certificate, key = _variable(CERTIFICATE_VARIABLE), _variable(KEY_VARIABLE)
        else:
            certificate, key = self.certificate_file, self.key_file
        return type(self)(self.token_file, self.ca_file or _variable(CA_VARIABLE), certificate, key)

    def token(self) -> str | None:
        """What its file holds. Raises as `context` does."""
        return None if self.token_file is None else _good(("token", self.token_file), self._token, [self.token_file])

    def _token(self) -> str:
        return FilesHere.read(self._token_in)

    def _token_in(self, here: FilesHere) -> str:
        assert self.token_file is not None  # noqa: S101 - the caller looked
        path = here.of(self.token_file)
        try:
            token = path.read_text().strip().partition("\n")[0].rstrip()  # of several, while it is replaced
        except (OSError, UnicodeDecodeError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or error
            raise ConfigError(f"token_file {self.token_file}: {reason}") from error
        if not token.isascii() or not token.isprintable() or not token:
            raise ConfigError(f"token_file {self.token_file}: the token is empty or not printable ASCII")
        return token

    def context(self) -> ssl.SSLContext:
        """What a connection is made with. Raises `ConfigError` naming the file that is no good, `ServiceUnavailable`
        where these files were good before: one of them is being replaced, or will be put right.
        """
        files = [file for file in (self.ca_file, self.certificate_file, self.key_file) if file is not None]
        return _good(("context", self), self._context, files)

    def check(self) -> None:
        """Raises `ConfigError` where the files, as they are now, cannot be used together."""
        if self.token_file is not None:
            self._token()
        self._context()

    def _context(self) -> ssl.SSLContext:
        return FilesHere.read(self._context_in)

    def _context_in(self, here: FilesHere) -> ssl.SSLContext:
        return _context_of(
            _read("ca_file", self.ca_file, here),
            _read("certificate_file", self.certificate_file, here),
            _read("key_file", self.key_file, here),
        )


_were_good: Final[set[tuple[str, object]]] = set()  # no more than a process has configurations


def _good(what: tuple[str, object], read: Callable[[], T], files: Sequence[Path]) -> T:
    limit_s = time.monotonic() + _CHANGES_S_MAX
    while True:
        try:
            content = read()
        except ConfigError as error:
            if what in _were_good:
                message = f"{error}. It was good before; the files are read again for each request"
                raise ServiceUnavailable(message) from error
            if time.monotonic() > limit_s or not any(map(_is_changing, files)):
                raise
        else:
            _were_good.add(what)
            return content
        time.sleep(_LOOK_S)  # files do not tell when they are replaced


def _is_changing(path: Path) -> bool:
    """Whether a file was replaced just now: what belongs to it may be replaced in a moment. In a new process nothing
    else tells that from a mistake.
    """
    try:
        return 0 <= time.time() - path.stat().st_ctime < _SETTLED_S
    except OSError:
        return False


def _variable(name: str) -> Path | None:
    value = os.environ.get(name)
    return Path(value) if value else None


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    inode: int
    changed_ns: int
    size: int


def _read(name: str, path: Path | None, here: FilesHere) -> _File | None:
    if path is None:
        return None
    path = here.of(path)
    try:
        with path.open("rb") as file:
            stat = os.fstat(file.fileno())
    except OSError as error:
        raise ConfigError(f"{name} {path}: {error.strerror or error}") from error
    return _File(path, stat.st_ino, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=16)
def _context_of(ca: _File | None, certificate: _File | None, key: _File | None) -> ssl.SSLContext:
    """Reading this machine's authorities takes as long as many requests, so it is done once."""
    try:
        context = ssl.create_default_context(cafile=None if ca is None else ca.path)
    except ssl.SSLError as error:
        raise ConfigError(f"ca_file {ca and ca.path}: no certificate in PEM: {error.reason or error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        key_path = None if key is None else key.path
        try:
            context.load_cert_chain(certificate.path, key_path, password=_no_password)
        except ssl.SSLError as error:
            raise ConfigError(
                f"certificate_file {certificate.path}, key_file {key_path or 'in the same'}: not a certificate and its "
                f"key in PEM: {error.reason or error}"
            ) from error
    return context


def _no_password() -> str:
    raise ConfigError("key_file: the key is encrypted; store it without a password (openssl pkey -in KEY -out NEW_KEY)")


def handshake_error(name: str, host: str, access: Access, error: OSError) -> DatabusError:
    """What went wrong before the first byte of a request was sent. name: how errors call the relay."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _not_trusted(name, host, access, error)
    alert = alert_error(name, access, error)
    if alert is not None:
        return alert
    reason = getattr(error, "reason", None)
    if reason in _NO_TLS:
        return ConfigError(
            f"{name}: what answers there does not speak TLS; if the relay has no `tls`, its address begins with http://"
        )
    if reason in _OLD_TLS:
        return ConfigError(f"{name}: it and this client have no version of TLS in common; TLS 1.2 is the least here")
    if isinstance(error, TimeoutError):
        return ServiceUnavailable(f"{name}: connected, but no TLS handshake in time; is that a relay with `tls`?")
    text = error.strerror if type(error) is OSError else str(error)
    return ServiceUnavailable(f"{name}: the connection ended in the TLS handshake: {text or error}")


def alert_error(name: str, access: Access, error: BaseException) -> DatabusError | None:
    """What a relay means that ends a connection because of our certificate; None for any other error.

    Where the version is 1.3, that comes when the request has been sent.
    """
    reason = getattr(error, "reason", None) if isinstance(error, ssl.SSLError) else None
    shown = access.certificate_file
    if reason in _WANTS_CERTIFICATE and shown is None:
        return AccessDenied(f"{name}: it lets in only who shows a certificate; give {_HOW_TO_SHOW}")
    if reason == _REFUSED_AS_EXPIRED:
        return ServiceUnavailable(
            f"{name}: it says that our certificate {shown} has expired; renew the file, which is read again for each "
            "connection"
        )
    if reason in _REFUSED or reason in _WANTS_CERTIFICATE:
        what = f"refuses our certificate {shown}" if shown else "refuses the connection"
        return AccessDenied(
            f"{name}: it {what} ({_words(reason)}); it wants one that an authority in its `client_ca_file` has signed"
        )
    return None


def _not_trusted(name: str, host: str, access: Access, error: ssl.SSLCertVerificationError) -> DatabusError:
    if error.verify_code == _EXPIRED:
        return ServiceUnavailable(
            f"{name}: its certificate, or one that signed it, has expired; renew it there (a relay uses a renewed file "
            "within seconds). It is asked again"
        )
    if error.verify_code == _NOT_YET:
        return ServiceUnavailable(
            f"{name}: its certificate is not valid yet; compare the clocks of both machines. It is asked again"
        )
    if error.verify_code in _WRONG_NAME:
        return ConfigError(
            f"{name}: its certificate is not for {host}; ask by a name that stands in it, or have one made for this "
            "name (subjectAltName)"
        )
    if error.verify_code in _UNKNOWN_CA:
        if access.ca_file is None:
            return ConfigError(
                f"{name}: nobody that this machine trusts has signed its certificate ({error.verify_message}); give "
                f"the certificate of the authority that did as {_HOW_TO_TRUST}"
            )
        return ConfigError(
            f"{name}: no authority in {access.ca_file} has signed its certificate ({error.verify_message}); give the "
            f"certificate of the one that did as {_HOW_TO_TRUST}"
        )
    return ConfigError(f"{name}: its certificate is refused: {error.verify_message}")


def _words(reason: str | None) -> str:
    return (reason or "").partition("ALERT_")[2].replace("_", " ").lower()
