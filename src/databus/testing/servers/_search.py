"""OpenSearch and Elasticsearch: one node each, on the loopback, as the tests of the search outputs want it."""

import http.client
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from databus.testing.servers._fetch import ServerMissing, kept
from databus.testing.servers._java_server import JavaServer, fetch_jars, java

_ASK_S_MAX: Final = 30


class SearchServer(JavaServer):
    """One node. Made stopped; as a context it is started, and thrown away at the end."""

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{self.host}:{self.port}"

    def ask(self, method: str, path: str, body: Any = None, *, wait_s_max: float = _ASK_S_MAX) -> Any:
        """Send a request with a body of JSON, and return the answer of JSON, whatever its status."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=wait_s_max)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"Content-Type": "application/json"})
            answer = connection.getresponse().read()
            return json.loads(answer) if answer else {}
        finally:
            connection.close()

    def documents(self, index: str) -> dict[str, dict[str, Any]]:
        """All documents of an index, of which there are at most ten thousand, by their ids; none if it is missing."""
        self.ask("POST", f"/{index}/_refresh")
        answer = self.ask("GET", f"/{index}/_search?size=10000")
        return {hit["_id"]: hit["_source"] for hit in answer.get("hits", {}).get("hits", [])}

    def _program(self, folder: Path) -> list[str]:
        return ["-cp", f"{folder}/*:{folder}", "SearchNode", str(self._write_settings())]

    def _answers(self) -> bool:
        try:
            return bool(self.ask("GET", "/_cluster/health?wait_for_status=yellow&timeout=5s")["status"] != "red")
        except (OSError, http.client.HTTPException, KeyError, ValueError):
            return False

    def _write_settings(self) -> Path:
        home = self.folder / "home"
        http_port, transport_port = (port.number for port in self._ports)
        settings = {
            "node.name": "n1",
            "path.home": str(home),
            "path.data": str(self.folder / "data"),
            "discovery.type": "single-node",
            "network.host": self.host,
            "http.port": http_port,
            "transport.tcp.port" if self.kind == Elasticsearch.kind else "transport.port": transport_port,
            "http.type": "netty4",
            "transport.type": "netty4",
            "cluster.routing.allocation.disk.threshold_enabled": False,
            **self.settings,
        }
        path = home / "config" / "node.yml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items()))
        return path


class OpenSearch(SearchServer):
    """OpenSearch 2.19: the newest that Java 17 runs."""

    kind = "opensearch-2.19"

    def prepare(self) -> Path:
        """See `SearchServer.prepare`."""
        return kept("opensearch-2.19.6-v1", _OPENSEARCH.make)


class Elasticsearch(SearchServer):
    """Elasticsearch 6.8, the last with types in its requests."""

    kind = "elasticsearch-6.8"

    def prepare(self) -> Path:
        """See `SearchServer.prepare`."""
        return kept("elasticsearch-6.8.23-v1", _ELASTICSEARCH.make)


_NODE: Final = """
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import org.{product}.common.settings.Settings;
import org.{product}.node.InternalSettingsPreparer;
import org.{product}.node.Node;
import org.{product}.transport.Netty4Plugin;

/** One node, without the distribution: its argument is its configuration file. */
public class SearchNode extends Node {{
    SearchNode(Settings settings) {{
        super(InternalSettingsPreparer.prepareEnvironment({environment}), List.of(Netty4Plugin.class), false);
    }}

    protected void registerDerivedNodeNameWithLogger(String name) {{  // which Elasticsearch 6 asks for
    }}

    public static void main(String[] given) throws Exception {{
        SearchNode node = new SearchNode(Settings.builder().loadFromPath(Path.of(given[0])).build());
        CountDownLatch ended = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {{
            try {{
                node.close();
            }} catch (Exception error) {{
                error.printStackTrace();
            }}
            ended.countDown();
        }}));
        node.start();
        ended.await();
    }}
}}
"""


@dataclass(frozen=True)
class _Program:
    """A product's jars and the class that makes a node of them."""

    product: str
    coordinates: tuple[str, ...]
    sha256: str
    environment: str
    """The Java expression that its settings are prepared from."""

    def make(self, draft: Path) -> None:
        """Fetch and compile."""
        fetch_jars(self.coordinates, self.sha256, draft)
        source = draft / "SearchNode.java"
        source.write_text(_NODE.format(product=self.product, environment=self.environment))
        jars = os.pathsep.join(map(str, draft.glob("*.jar")))
        compiler = [java(), "-m", "jdk.compiler/com.sun.tools.javac.Main", "-cp", jars, "-d", str(draft)]
        done = subprocess.run([*compiler, str(source)], capture_output=True, text=True, check=False, timeout=60)
        if done.returncode != 0:
            raise ServerMissing(f"{self.product}: this Java does not compile {source.name}: {done.stderr[-800:]}")


_OPENSEARCH: Final = _Program(
    "opensearch",
    (
        "org.opensearch:opensearch:2.19.6",
        "org.opensearch.plugin:transport-netty4-client:2.19.6",
        "org.apache.logging.log4j:log4j-core:2.25.4",
    ),
    "5be6cedfc7ab233a7c2d8e681ac5382f9076834ddf6c633258953877d64e4e3c",
    'settings, Map.of(), null, () -> "n1"',
)
_ELASTICSEARCH: Final = _Program(
    "elasticsearch",
    (
        "org.elasticsearch:elasticsearch:6.8.23",
        "org.elasticsearch.plugin:transport-netty4-client:6.8.23",
        "org.apache.logging.log4j:log4j-core:2.17.1",
    ),
    "31171359167a0cc18f4838a99ee1132b0826d1f1e1105c1dcb7b61137f4b7018",
    "settings, null, Map.of(), null",
)
SEARCH_KINDS: Final = (OpenSearch.kind, Elasticsearch.kind)
_BY_KIND: Final = {server.kind: server for server in (OpenSearch, Elasticsearch)}


def open_search_server(kind: str, folder: Path, **options: Any) -> SearchServer:
    """A server of a kind by name, not started; `options` are those of `SearchServer`."""
    return _BY_KIND[kind](folder, **options)
