"""A module that starts a thread when it is imported, as some do."""

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
