"""Who wants to hear of each publish."""

import threading
from collections.abc import Callable


class Subscribers:
    """Callbacks, and whether something was published that they do not know yet. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: tuple[Callable[[], None], ...] = ()
        self._is_untold = False

    def add(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` from now on. Returns how to stop that."""
        with self._lock:
            self._callbacks = (*self._callbacks, callback)

        def remove() -> None:
            with self._lock:
                self._callbacks = tuple(other for other in self._callbacks if other is not callback)

        return remove

    def note(self) -> None:
        """Something was published."""
        self._is_untold = True

    def tell(self) -> None:
        """Call them if something was published; with no lock held, for they may read at once."""
        if self._is_untold:
            self._is_untold = False
            for callback in self._callbacks:
                callback()
