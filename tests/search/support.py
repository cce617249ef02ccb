"""A search output as the tests make it, and what stands in its index, read by the server's own search."""

from databus.pipeline import OutputContext
from databus.sinks.search._output import ElasticsearchOutput, OpenSearchOutput
from tests.outputs.harnesses import parsed

OUTPUTS = {"opensearch-2.19": OpenSearchOutput, "elasticsearch-6.8": ElasticsearchOutput}
QUICK = {"retry_ms_max": 500, "request_ms_max": 20_000, "settings": {"number_of_shards": 1, "number_of_replicas": 0}}


def output_of(server, folder, *, kind=None, name="index", **options):
    kind = OUTPUTS[kind or server.kind]
    given = {"type": kind.product, "from": "shop", "url": server.url, **QUICK, **options}
    return kind(kind.config_model.model_validate(given), OutputContext("shop", name, folder))


class SearchHarness:
    keeps = "mirror"

    def __init__(self, server, folder, **options):
        self.server = server
        self.folder = folder
        self.options = options

    def full(self):
        return None

    def make(self):
        return output_of(self.server, self.folder, **self.options)

    def read(self, physical, table):
        name = table.source.partition(".")[2]
        return [parsed(document, table) for document in self.server.documents(name).values()]
