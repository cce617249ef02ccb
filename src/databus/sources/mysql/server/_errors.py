"""What PyMySQL and sockets raise, as databus's errors: either an operator has to act, or waiting helps.

No text here holds a password: the server's do not, and ours name users and addresses only.
"""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pymysql
from pymysql.constants import CR, ER

from databus.core import DatabusError, FatalError, InputError, ServiceUnavailable

_WANTS_TLS: Final = 3159
_BY_SOMEBODY: Final = frozenset(  # who has to change the configuration, or the server's users
    {
        ER.ACCESS_DENIED_ERROR,
        ER.DBACCESS_DENIED_ERROR,
        ER.HOST_NOT_PRIVILEGED,
        ER.TABLEACCESS_DENIED_ERROR,
        ER.COLUMNACCESS_DENIED_ERROR,
        ER.SPECIFIC_ACCESS_DENIED_ERROR,
        ER.NOT_SUPPORTED_AUTH_MODE,
        1370,  # no privilege for a routine
        1524,  # the user's authentication plugin is not loaded
        1698,  # access denied, where no password would help
        1820,  # the password has to be changed first
        1862,  # the password has expired
        3118,  # the account is locked
        4151,  # MariaDB: the account is locked
        _WANTS_TLS,
        CR.CR_SSL_CONNECTION_ERROR,
        CR.CR_AUTH_PLUGIN_CANNOT_LOAD,
    }
)
_BY_TIME: Final = frozenset(  # it is the server, the network or another client's lock
    {
        0,  # PyMySQL found bytes where it did not expect them: the server ended in the middle of something
        ER.CON_COUNT_ERROR,
        ER.TOO_MANY_USER_CONNECTIONS,
        ER.USER_LIMIT_REACHED,
        ER.HOST_IS_BLOCKED,
        ER.SERVER_SHUTDOWN,
        ER.NORMAL_SHUTDOWN,
        ER.OUT_OF_RESOURCES,
        ER.LOCK_WAIT_TIMEOUT,
        ER.LOCK_DEADLOCK,
        ER.QUERY_INTERRUPTED,
        ER.NEW_ABORTING_CONNECTION,
        ER.ABORTING_CONNECTION,
        1080,  # forced close of a thread
        1927,  # MariaDB: the connection was killed
        1969,  # MariaDB: max_statement_time
        3024,  # max_execution_time
        3168,  # the server is not ready yet
        3169,  # the session was killed
        4031,  # cut off for doing nothing
        CR.CR_CONN_HOST_ERROR,
        CR.CR_SERVER_GONE_ERROR,
        CR.CR_SERVER_LOST,
    }
)


@contextmanager
def telling(server: str, doing: str) -> Iterator[None]:
    """Turn what PyMySQL and sockets raise inside into our errors; `server` and `doing` are for their text.

    >>> with telling("db1:3306", "reading"):
    ...     raise pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")
    Traceback (most recent call last):
    ...
    databus.core._errors.ServiceUnavailable: db1:3306: reading: Lost connection to MySQL server during query (2013)
    """
    try:
        yield
    except pymysql.MySQLError as error:
        raise server_error(error, doing, server) from error
    except OSError as error:
        raise _network_error(error, f"{server}: {doing}") from error


def server_error(error: pymysql.MySQLError, doing: str, server: str = "the server") -> DatabusError:
    """The error as databus's: `ServiceUnavailable`, `InputError`, or `FatalError` for an unexpected one."""
    where = f"{server}: {doing}"
    cause = getattr(error, "original_exception", None)
    if isinstance(cause, OSError):
        return _network_error(cause, where)
    code, text = error_of(error)
    message = f"{where}: {text or type(error).__name__} ({code})"
    if code == CR.CR_SSL_CONNECTION_ERROR:
        message += "; give the server a certificate (ssl_cert, ssl_key), or set `tls: off`"
    elif code == _WANTS_TLS:
        message += "; set `tls: on`"
    elif code == ER.ACCESS_DENIED_ERROR:
        message += "; correct `user` and `password`, or create that user for that host on the server"
    if code in _BY_SOMEBODY:
        return InputError(message)
    return ServiceUnavailable(message) if code in _BY_TIME else FatalError(message)


def error_of(error: BaseException) -> tuple[int, str]:
    """PyMySQL's error number (0 if it has none) and text."""
    if len(error.args) == 2 and isinstance(error.args[0], int):
        return error.args[0], str(error.args[1])
    return 0, str(error)


def _network_error(cause: OSError, where: str) -> DatabusError:
    kind, text = _network_words(cause)
    return kind(f"{where}: {text}")


def _network_words(cause: OSError) -> tuple[type[DatabusError], str]:
    outcome: tuple[type[DatabusError], str]
    match cause:
        case ssl.SSLCertVerificationError():
            mend = "set tls_ca to the authority that signed it, or tls_server_name to a name that it holds"
            outcome = (InputError, f"the server's certificate is not trusted: {cause.verify_message}; {mend}")
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError():
            outcome = (ServiceUnavailable, "the server ended the connection")
        case ssl.SSLError():
            outcome = (InputError, f"TLS failed: {cause.reason or cause}; the server's may be too old for this machine")
        case socket.gaierror(errno=socket.EAI_AGAIN):
            outcome = (ServiceUnavailable, "its name cannot be looked up now")
        case socket.gaierror():
            outcome = (InputError, f"there is no such host: {cause.strerror}; correct `hosts`")
        case TimeoutError():
            outcome = (ServiceUnavailable, "no answer in time")
        case ConnectionRefusedError():
            mend = "is the port in `hosts` right, does the server run, and listen on that address (`bind_address`)?"
            outcome = (ServiceUnavailable, f"nothing listens there: connection refused; {mend}")
        case _:
            outcome = (ServiceUnavailable, str(cause.strerror or cause))
    return outcome
