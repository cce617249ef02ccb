"""An OpenSearch of one node, until Ctrl-C. Its address is in the file search.address."""

import signal
from pathlib import Path

from databus.testing.servers import open_search_server

if __name__ == "__main__":
    with open_search_server("opensearch-2.19", Path.cwd() / "search") as server:
        Path("search.address").write_text(server.url)
        print(f"OpenSearch answers at {server.url}", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
