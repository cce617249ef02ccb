"""Where a session has the log's bytes from: a server's dump, or files."""

from typing import Protocol

import numpy as np
import numpy.typing as npt


class LogFeed(Protocol):
    """Where the log's bytes come from."""

    def take(self, wait_s: float) -> npt.NDArray[np.uint8] | None:
        """The next bytes; None if none came in time. Raises what ended them."""
        ...

    def wake(self) -> None:
        """Let `take` return at once. Any thread."""
        ...

    def close(self) -> None:
        """Close it."""
        ...
