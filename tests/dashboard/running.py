"""A dashboard in this process, and somebody who is signed in there."""

import asyncio
import hashlib
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import yaml

from databus.dashboard import Alerting, Dashboard, DashboardConfig, Hook, Part, Push
from tests.dashboard.parts import WAIT_S, ask, wait_until

MARK = {"X-Databus-Dashboard": "1"}


class Running:
    """`with Running(...)`: it serves at `url`; `link` is what its owner is told."""

    def __init__(
        self,
        folder: Path,
        parts: Sequence[tuple[str, Part]],
        principals: Sequence[Mapping[str, Any]] = (),
        hook: Hook | None = None,
        pushes: Sequence[Push] = (),
        alerting: Alerting | None = None,
        **limits: int,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "principals.yml"
        file.write_text(yaml.safe_dump({"principals": [entry(**each) for each in principals]}))
        config = DashboardConfig(
            ("127.0.0.1", 0),
            parts,
            folder,
            file if principals else None,
            hook=hook,
            pushes=pushes,
            alerting=alerting or Alerting(),
            **limits,
        )
        self.links: list[str] = []
        self.file = file
        self.dashboard = Dashboard(config, self.links.append)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._task: asyncio.Task[None] | None = None

    def _run(self) -> None:
        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.ensure_future(self.dashboard.run(self._ready.set))
            with suppress(asyncio.CancelledError):
                await self._task

        asyncio.run(main())

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(WAIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._task is not None
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(WAIT_S)

    @property
    def url(self) -> str:
        return self.dashboard.url

    def api(
        self, path: str, body: Any = None, *, token: str = "", cookie: str = "", method: str = "", **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        """A request of a program, by its token, or of our page, by its cookie."""
        sent = {"Authorization": f"Bearer {token}"} if token else {}
        sent |= {"Cookie": cookie, "Origin": self.url} if cookie else {}
        sent |= MARK if body is not None or method == "DELETE" else {}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return ask(self.url, f"/api/v1{path}", body, method=method, headers={**sent, **named})

    def wait_for_outputs(self, count: int, token: str) -> list[Any]:
        """The outputs, once so many have been seen."""
        return wait_until(
            lambda: found if len(found := self.api("/status", token=token)[1]["outputs"]) == count else None
        )


def entry(name: str, rights: Sequence[str] = ("see",), projects: Sequence[str] = ("*",)) -> dict[str, Any]:
    digest = hashlib.sha256(token_of(name).encode()).hexdigest()
    return {"name": name, "token_sha256": digest, "rights": list(rights), "projects": list(projects)}


def token_of(name: str) -> str:
    return f"the token of {name}"
