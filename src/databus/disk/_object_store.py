"""Files in an object store: S3 and what speaks its protocol, Google Cloud Storage, Azure. Start with `StoreLocation`.

An object appears whole or not at all, and is written only if it is still the version that was read (`If-Match`,
`If-None-Match`): by that a second writer is found.
"""

import io
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, Self, cast
from urllib.parse import quote

from databus.core import AccessDenied, Backoff, ConfigError, DatabusError, ServiceUnavailable, how_to_install
from databus.disk._location import FileContent, Location, Storage, WriteConflict, gone

if TYPE_CHECKING:
    from obstore import UpdateVersion

SCHEMES: Final[Mapping[str, str]] = {"s3": "s3", "s3a": "s3", "gs": "gs", "abfss": "abfss"}
"""What a URI may begin with, and under which name its options stand."""

_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_PARTS: Final = re.compile(r"([a-z0-9]+)://([^/?#%\s{}]+)(?:/([^?#%]*))?")
_RETRIES: Final = 3
_RETRY_S_MAX: Final = 10
_REFUSED_MS: Final = (50, 1_000)
_REFUSED_TOTAL_MS: Final = 1_250
_CONNECT_S_MAX: Final = 5
_STORES_MAX: Final = 64
_NO_TAG: Final = {"e_tag": f'"{0:032x}"', "version": "1"}  # of no version of anything
_SPOOLED_BYTES_MAX: Final = 8 << 20
_READ_BYTES: Final = 1 << 20
_ERROR_CHARS_MAX: Final = 400
_SECRET_CHARS_MIN: Final = 4  # of less, every second word of an error would be one

_CLIENT_OPTIONS: Final = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "timeout",
        "user_agent",
    }
)
"""Those of the connection, which are the same for all stores."""

_SHOWN: Final = re.compile(
    r"(aws_)?(endpoint(_url)?|region|default_region|allow_.*|.*timeout|virtual_hosted.*|user_agent)"
)
"""Options that are no secrets, by name; all others are hidden where the store repeats them in an error."""

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_DEBUG: Final = re.compile(r"\n*Debug source:.*", re.DOTALL)
_OF_THE_STORE: Final = re.compile(r"Generic (S3|GCS|MicrosoftAzure)\w* error|error sending request")
_DENIED: Final = re.compile(
    r"\b(401 Unauthorized|403 Forbidden)|InvalidAccessKeyId|SignatureDoesNotMatch|lacked valid auth"
)
_OWN_KEYS: Final = re.compile(r"http://(169\.254\.\d+\.\d+|metadata(\.google\.internal)?)[:/]")
"""Where a machine in a cloud is asked for keys of its own, if none are given."""
_NO_BUCKET: Final = re.compile(r"NoSuchBucket|ContainerNotFound|The specified bucket does not exist")
_NO_CONDITIONS: Final = re.compile(r"501 Not Implemented|NotImplemented")


def is_uri(path: str) -> bool:
    """Whether a path is the URI of something else than a file."""
    match = _URI.match(path)
    return match is not None and match[1].lower() != "file"


@dataclass(frozen=True, slots=True)
class StoreLocation(Location):
    """An object, or what begins with its name and a slash."""

    root: str
    """Scheme and bucket."""
    key: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, uri: str, storage: Storage) -> Self:
        """Raises `ConfigError` for a URI that names no place in a store that we know."""
        scheme = uri.partition(":")[0]
        if scheme not in SCHEMES:
            raise ConfigError(f"{scheme}: is no store that databus knows; there are {', '.join(SCHEMES)}, and paths")
        parts = _PARTS.fullmatch(uri)
        if parts is None or ("@" in parts[2]) != (scheme == "abfss") or ":" in parts[2]:
            form = "CONTAINER@ACCOUNT.dfs.core.windows.net" if scheme == "abfss" else "BUCKET"
            raise ConfigError(
                f"a place in a store is written {scheme}://{form}/FOLDER, without `?`, `#` and `%`; options and keys "
                "stand under `storage`"
            )
        root = f"{SCHEMES[scheme]}://{parts[2]}"
        return cls(root, _key_of(parts[3] or ""), tuple(sorted(storage.of(root).items())))

    def __str__(self) -> str:
        return f"{self.root}/{self.key}"

    @property
    def name(self) -> str:
        """See `Location.name`."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> "StoreLocation":
        """See `Location.parent`."""
        return self._at(self.key.rpartition("/")[0])

    def __truediv__(self, name: str) -> "StoreLocation":
        return self._at(_key_of(f"{self.key}/{name}"))

    def _at(self, key: str) -> "StoreLocation":
        return StoreLocation(self.root, key, self.options)

    @property
    def engine_uri(self) -> str:
        """See `Location.engine_uri`: it decodes what is a file's name to us."""
        return f"{self.root}/{quote(self.key)}"

    @property
    def engine_options(self) -> dict[str, str] | None:
        """See `Location.engine_options`."""
        limits = {"max_retries": str(_RETRIES), "retry_timeout": f"{_RETRY_S_MAX}s"}
        return {**limits, **_connection_of(self.options), **dict(self.options)}

    @property
    def _store(self) -> Any:
        return _store_of(self.root, self.options)

    @property
    def _tag_kind(self) -> Literal["e_tag", "version"]:
        """What a condition names: in Google's store the generation of an object, elsewhere its ETag."""
        return "version" if self.root.startswith("gs:") else "e_tag"

    def _version_of(self, tag: str) -> "UpdateVersion":
        return {"version": tag} if self._tag_kind == "version" else {"e_tag": tag}

    def read(self) -> FileContent | None:
        """See `Location.read`."""
        import obstore

        with self._errors("read"):
            try:
                answer = obstore.get(self._store, self.key)
                content = bytes(answer.bytes())
            except FileNotFoundError:
                return None
            return FileContent(content, answer.meta[self._tag_kind] or "")

    def put(self, content: bytes, *, after: str | None) -> str:
        """See `Location.put`."""
        backoff = Backoff(*_REFUSED_MS, total_ms=_REFUSED_TOTAL_MS)
        while not backoff.is_over:
            with suppress(_OtherRequest):
                return self._put(content, after)
            backoff.sleep()  # the other request ends within that, mostly; no store says when it has
        raise ServiceUnavailable(
            f"{self}: could not be written: other requests for it were under way each time; this is tried again"
        )

    def _put(self, content: bytes, after: str | None) -> str:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._errors("written"):
            try:
                result = obstore.put(
                    self._store,
                    self.key,
                    content,
                    mode="create" if after is None else self._version_of(after),
                    use_multipart=False,
                )
            except (AlreadyExistsError, PreconditionError):
                # S3 also answers 409 while another request for the object is under way: then it is as it was.
                refusal = _OtherRequest() if self._tag() == after else WriteConflict()
            except FileNotFoundError:  # a version that was to be replaced
                if after is None:
                    raise
                refusal = WriteConflict()
            else:
                return result[self._tag_kind] or ""
        raise refusal

    def _tag(self) -> str | None:
        """The tag of the object's present version; None if there is no object."""
        import obstore

        try:
            return obstore.head(self._store, self.key)[self._tag_kind] or ""
        except FileNotFoundError:
            return None

    def check_conditions(self) -> None:
        """See `Location.check_conditions`: asks for what must be refused, and would change nothing."""
        version = self.read()
        if version is None:
            return
        for name, after in (("If-None-Match", None), ("If-Match", _NO_TAG[self._tag_kind])):
            with suppress(WriteConflict):
                self.put(version.content, after=after)
                raise ConfigError(
                    f"{self}: the store passes over the condition of a write (`{name}`), so that a second writer could "
                    f"not be found. Use a newer version of it, or another store"
                )

    def write(self, content: bytes) -> None:
        """See `Location.write`."""
        import obstore

        with self._errors("written"):
            obstore.put(self._store, self.key, content, use_multipart=False)

    @contextmanager
    def writing(self, before_visible: Callable[[], None] | None = None, *, durable: bool = True) -> Iterator[BinaryIO]:
        """See `Location.writing`. Until then a large one is in a temporary file of this machine."""
        import obstore

        del durable

        with tempfile.SpooledTemporaryFile(_SPOOLED_BYTES_MAX) as file:
            yield cast("BinaryIO", file)
            file.seek(0)
            if before_visible is not None:
                before_visible()
            with self._errors("written"):
                obstore.put(self._store, self.key, cast("BinaryIO", file))

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """See `Location.reading`."""
        import obstore
        import pyarrow as pa

        with self._errors("read"):
            try:
                file = obstore.open_reader(self._store, self.key, buffer_size=_READ_BYTES)
            except FileNotFoundError as error:
                missing = error
            else:
                with pa.PythonFile(_Readable(file), mode="r") as opened:
                    yield opened
                return
        raise missing

    def give_name(self, name: str) -> None:
        """See `Location.give_name`: the store copies it, and then removes it."""
        import obstore

        with self._errors("renamed"):
            try:
                obstore.rename(self._store, self.key, (self.parent / name).key, overwrite=True)
            except FileNotFoundError:
                missing = gone(self)
            else:
                return
        raise missing

    def exists(self) -> bool:
        """See `Location.exists`."""
        import obstore

        with self._errors("read"):
            try:
                obstore.head(self._store, self.key)
            except FileNotFoundError:
                return False
            return True

    def names(self) -> list[str]:
        """See `Location.names`."""
        import obstore

        with self._errors("listed"):
            listing = obstore.list_with_delimiter(self._store, self.key or None)
            paths = [*listing["common_prefixes"], *(item["path"] for item in listing["objects"])]
            return [path.rpartition("/")[2] for path in paths]

    def make(self) -> None:
        """See `Location.make`: there are no folders here."""

    def remove(self) -> None:
        """See `Location.remove`."""
        self._delete([self.key])

    def _delete(self, keys: Sequence[str]) -> None:
        import obstore

        with self._errors("removed"):
            try:
                obstore.delete(self._store, keys)
            except FileNotFoundError:
                return

    def remove_folder(self) -> None:
        """See `Location.remove_folder`."""
        import obstore

        with self._errors("removed"):
            for objects in obstore.list(self._store, self.key):
                self._delete([item["path"] for item in objects])

    def open(self) -> None:
        """Look at the options, without asking the store. Raises `ConfigError`."""
        _store_of(self.root, self.options)

    def check(self) -> None:
        """See `Location.check`."""
        import obstore

        with self._errors("listed"):
            next(iter(obstore.list(self._store, self.key or None, chunk_size=1)), None)

    @contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError) as error:
            raise (self.trouble(error) or self._unavailable(error, verb)) from None  # their texts may hold secrets

    def _unavailable(self, error: Exception, verb: str) -> ServiceUnavailable:
        return ServiceUnavailable(
            f"{self}: could not be {verb}: {_shown_text(error, self.options)}; this is tried again"
        )

    def trouble(self, error: Exception) -> DatabusError | None:
        """See `Location.trouble`."""
        text, reason = str(error), _shown_text(error, self.options)
        if _OWN_KEYS.search(text):
            message = (
                f"{self}: no keys are given under `storage` or in the environment, and this machine gives none: "
                f"{reason}"
            )
            return AccessDenied(message) if _DENIED.search(text) else ServiceUnavailable(message)
        if _DENIED.search(text):
            return AccessDenied(
                f"{self}: the store does not let us in: {reason}. Look at the keys under `storage`, and at what they "
                "may do"
            )
        if _NO_BUCKET.search(text):
            return ConfigError(f"{self}: there is no such bucket: {reason}. Make it, or give the output another `path`")
        if _NO_CONDITIONS.search(text):
            return ConfigError(
                f"{self}: the store does not write on a condition (`If-Match`, `If-None-Match`), by which a second "
                f"writer is found: {reason}. Use another store"
            )
        if not _OF_THE_STORE.search(text):
            return None
        return ServiceUnavailable(f"{self}: the store does not answer: {reason}; this is tried again")


class _OtherRequest(Exception):
    """The store did not write an object for the sake of another request."""


class _Readable(io.RawIOBase):
    """An object, as Python's files are read."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next byte is read."""
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go there."""
        return int(self._file.seek(offset, whence))

    def readinto(self, into: Any) -> int:
        """Read what is there, as far as it fits."""
        content = memoryview(self._file.read(len(into)))
        into[: len(content)] = content
        return len(content)


def _key_of(path: str) -> str:
    """Raises `ConfigError` for one that goes up."""
    parts = [part for part in path.split("/") if part]
    if {".", ".."}.intersection(parts):
        raise ConfigError(f"{path}: `.` and `..` are no folders in a store")
    return "/".join(parts)


def _shown_text(error: Exception, options: tuple[tuple[str, str], ...]) -> str:
    """An error's words in one line, without what the options keep secret."""
    text = " ".join(_DEBUG.sub("", _COLOUR.sub("", str(error))).replace("↳", "").split())
    for name, value in options:
        if len(value) >= _SECRET_CHARS_MIN and not _SHOWN.fullmatch(name.lower()):
            text = text.replace(value, "***")
    return text if len(text) <= _ERROR_CHARS_MAX else f"{text[:_ERROR_CHARS_MAX]}..."


def _connection_of(options: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Options of the connection. An endpoint that is written with `http:` is meant so."""
    by_name = {name.lower(): value for name, value in options}
    is_plain = any(value.startswith("http://") for name, value in by_name.items() if "endpoint" in name)
    ours = {"connect_timeout": f"{_CONNECT_S_MAX}s", **({"allow_http": "true"} if is_plain else {})}
    return {**ours, **{name: value for name, value in by_name.items() if name in _CLIENT_OPTIONS}}


@lru_cache(maxsize=_STORES_MAX)
def _store_of(root: str, options: tuple[tuple[str, str], ...]) -> Any:
    """Raises `ConfigError` where the library is not there, or for an option that it does not know."""
    try:
        from obstore.exceptions import BaseError, UnknownConfigurationKeyError
        from obstore.store import from_url
    except ImportError as error:
        raise ConfigError(f"{root}: the client of object stores is missing: {how_to_install('store')}") from error
    config: Any = {name: value for name, value in options if name.lower() not in _CLIENT_OPTIONS}
    connection: Any = _connection_of(options)
    try:
        return from_url(
            root,
            config=config,
            client_options=connection,
            retry_config={"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_RETRY_S_MAX)},
        )
    except UnknownConfigurationKeyError as error:
        known = re.search(r"'([^']*)'", str(error))
        name = known[1] if known is not None else "one of them"
        raise ConfigError(f"{root}: has no option {name!r}; see docs/operations.md, Object stores") from None
    except BaseError as error:
        raise ConfigError(f"{root}: {_shown_text(error, options)}") from None
