"""The demo's indices of OpenSearch, and the documents that a search finds in them."""

from pathlib import Path
from typing import Any, Final

from databus.cli._demo_target import Say, compare_rows
from databus.core import ServiceUnavailable
from databus.sources import SourceConfig
from databus.testing.servers import open_search_server

_SECTIONS: Final = """\
outputs:
  indices:
    type: opensearch
    from: shop
    url: "{url}"
    index: "shop-{{table}}"
    settings: {{number_of_replicas: 0}}
"""
_KIND: Final = "opensearch-2.19"
_PAGE: Final = 10_000


class SearchDemo:
    """An OpenSearch of one node with its data in the demo's folder, and an index a table."""

    product = "OpenSearch"
    outputs = ("indices",)

    def __init__(self, folder: Path) -> None:
        self.server = open_search_server(_KIND, folder / "opensearch")

    def build(self) -> None:
        """See `Target`."""
        self.server.start()

    def sections(self) -> str:
        """See `Target`."""
        return _SECTIONS.format(url=self.server.url)

    def compare(self, source: SourceConfig, relay: str, say: Say) -> int:
        """See `Target`."""
        return compare_rows(source, relay, self._documents, say, "indices")

    def _documents(self, table: str) -> list[dict[str, Any]]:
        """All documents of a table's index, page by page."""
        index, documents = f"shop-{table}", list[dict[str, Any]]()
        self.server.ask("POST", f"/{index}/_refresh")
        page = self.server.ask("POST", f"/{index}/_search?scroll=1m&size={_PAGE}", {"sort": ["_doc"]})
        while True:
            if "hits" not in page:
                raise ServiceUnavailable(f"{self.server}: does not answer a search in {index}: {page}")
            if not page["hits"]["hits"]:
                return documents
            documents += [hit["_source"] for hit in page["hits"]["hits"]]
            page = self.server.ask("POST", "/_search/scroll", {"scroll": "1m", "scroll_id": page["_scroll_id"]})
