"""Groups as an operator sees and moves them: /groups of the relay that coordinates. Members call by themselves."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from databus.core import OtherCoordinator
from databus.link._relay import RelayClient


class Groups:
    """The groups of a relay. Each call raises `OtherCoordinator` where another one coordinates."""

    def __init__(self, relay: RelayClient) -> None:
        self._relay = relay

    def page(self) -> Mapping[str, Any]:
        """All of them with how far they are behind, and the names whose state is lost."""
        page: Mapping[str, Any] = self._relay._get("/groups", {})  # noqa: SLF001 - the same package
        if not page["is_coordinator"]:
            raise OtherCoordinator(
                f"groups are coordinated by {page['coordinator']}; ask there (--relay)", coordinator=page["coordinator"]
            )
        return page

    def group(self, name: str, part: str = "") -> Mapping[str, Any]:
        """One group; or a part of what is said of it, such as `export`. Raises `UnknownGroup`, `GroupStateLost`."""
        page: Mapping[str, Any] = self._relay._get(_path(name, part), {})  # noqa: SLF001 - the same package
        return page

    def act(
        self, name: str, verb: str, query: Mapping[str, Any] | None = None, content: bytes | None = None
    ) -> Mapping[str, Any]:
        """Have one reset, resized, paused, resumed, deleted or imported; how it is then. Raises `GroupBusy` too."""
        page: Mapping[str, Any] = self._relay._post(_path(name, verb), query or {}, content)  # noqa: SLF001 - as above
        return page


def _path(name: str, part: str) -> str:
    path = f"/groups/{quote(name, safe='')}"
    return f"{path}/{part}" if part else path
