"""Messages to a server that may be down: sent in order, each until it is accepted; a bounded number of them waits."""

import asyncio
import smtplib
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path
from typing import Final, Generic, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

from aiohttp import ClientError, ClientSession, ClientTimeout

from databus.core import ConfigError
from databus.operate import logger_of

_ANSWER_S_MAX: Final = 10.0
_AGAIN_S: Final = (1.0, 60.0)
"""The first and the longest wait before a message is sent again."""
_SUCCESS: Final = range(200, 300)
_WRONG: Final = frozenset({400, 401, 403, 404, 405, 413, 422})
"""Statuses of a request that will fail again as it is; with `gives_up` it is dropped for the next one."""
_PORTS: Final = {"none": 25, "starttls": 587, "tls": 465}

MessageT = TypeVar("MessageT")

_logger = logger_of("databus.dashboard")


class Sent(NamedTuple):
    """The result of sending one message."""

    trouble: str = ""
    """Why it was not accepted; empty if it was."""
    is_refused: bool = False
    """Whether it would be refused again."""


class Outbox(Generic[MessageT]):
    """`run` sends what `put` adds, until it is cancelled; both belong to the loop's thread. what: the receiver, for
    people.

    waiting_max: beyond it the oldest is dropped; with 1 a new message replaces the one that waits, which is no loss.
    gives_up: a message that is refused for good is dropped, not sent again.
    """

    def __init__(self, what: str, waiting_max: int, *, gives_up: bool) -> None:
        self._what = what
        self._gives_up = gives_up
        self._waiting: deque[MessageT] = deque()
        self._waiting_max = waiting_max
        self._has_come = asyncio.Event()
        self.dropped = 0
        self.trouble = ""
        """Why nothing can be sent; empty where it can."""

    def put(self, message: MessageT) -> None:
        """Send it when its turn comes."""
        if len(self._waiting) >= self._waiting_max:
            self._waiting.popleft()
            self.dropped += self._waiting_max > 1
        self._waiting.append(message)
        self._has_come.set()

    async def run(self) -> None:
        """Send what there is."""
        wait_s = _AGAIN_S[0]
        while True:
            await self._has_come.wait()
            if not self._waiting:
                self._has_come.clear()
                continue
            first = self._waiting[0]
            sent = await self._send(first)
            if sent.trouble and sent.trouble != self.trouble:
                _logger.warning("not sent; tried again", to=self._what, why=sent.trouble)
            self.trouble = f"{self._what} {sent.trouble}" if sent.trouble else ""
            if sent.trouble and not (self._gives_up and sent.is_refused):
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _AGAIN_S[1])
                continue
            wait_s = _AGAIN_S[0]
            self.dropped += bool(sent.trouble)
            if self._waiting and self._waiting[0] is first:  # else `put` has dropped it meanwhile
                self._waiting.popleft()

    async def _send(self, message: MessageT) -> Sent:
        raise NotImplementedError


class Request(NamedTuple):
    """The body and headers of one POST."""

    body: bytes
    headers: Callable[[], Mapping[str, str]]
    """Called before each attempt, since a signature contains the time."""


class HttpOutbox(Outbox[Request]):
    """Posts requests to one address."""

    def __init__(self, what: str, url: str, waiting_max: int, *, gives_up: bool) -> None:
        """Raises `ConfigError` for an invalid address."""
        address = urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ConfigError(f"{what}: {url}: expected an address, such as https://hooks.example/databus")
        super().__init__(what, waiting_max, gives_up=gives_up)
        self._url = url
        self._session: ClientSession | None = None

    async def run(self) -> None:
        """See `Outbox.run`."""
        async with ClientSession(timeout=ClientTimeout(total=_ANSWER_S_MAX)) as self._session:
            await super().run()

    async def _send(self, request: Request) -> Sent:
        assert self._session is not None  # noqa: S101 - `run` has opened it
        try:
            posting = self._session.post(self._url, data=request.body, headers=request.headers(), allow_redirects=False)
            async with posting as answer:
                if answer.status in _SUCCESS:
                    return Sent()
                return Sent(f"answers {answer.status}", answer.status in _WRONG)
        except (ClientError, TimeoutError, OSError):
            return Sent("does not answer")


@dataclass(frozen=True)
class MailServer:
    """An SMTP server, and what mails of alerts have as sender and recipients."""

    host: str
    sender: str
    to: tuple[str, ...]
    security: Literal["none", "starttls", "tls"] = "starttls"
    port: int | None = None
    """None: the usual one for `security`."""
    user: str | None = None
    """None: without a log-in."""
    password_file: Path | None = None
    """Where the password of `user` is."""


class MailOutbox(Outbox[EmailMessage]):
    """Hands messages to an SMTP server."""

    def __init__(self, server: MailServer, waiting_max: int) -> None:
        super().__init__("the mail server", waiting_max, gives_up=True)
        self._server = server

    async def _send(self, message: EmailMessage) -> Sent:
        try:
            await asyncio.to_thread(self._hand_over, message)
        except smtplib.SMTPRecipientsRefused:
            return Sent("refuses all recipients", is_refused=True)
        except smtplib.SMTPResponseException as error:
            return Sent(f"answers {error.smtp_code}", error.smtp_code >= 500)
        except (smtplib.SMTPException, OSError) as error:
            return Sent(f"does not answer: {type(error).__name__}")
        return Sent()

    def _hand_over(self, message: EmailMessage) -> None:
        server = self._server
        port = server.port or _PORTS[server.security]
        context = ssl.create_default_context()
        smtp = (
            smtplib.SMTP_SSL(server.host, port, timeout=_ANSWER_S_MAX, context=context)
            if server.security == "tls"
            else smtplib.SMTP(server.host, port, timeout=_ANSWER_S_MAX)
        )
        with smtp as connection:
            if server.security == "starttls":
                connection.starttls(context=context)
            if server.user is not None:
                password = "" if server.password_file is None else server.password_file.read_text().strip()
                connection.login(server.user, password)
            connection.send_message(message, server.sender, server.to)
