"""Is a cluster fit to be read? What `databus check-source` says of it."""

from collections.abc import Sequence

from databus.core import DatabusError
from databus.sources._capabilities import Finding
from databus.sources.kafka._cluster import Cluster, missing_topics
from databus.sources.kafka._config import KafkaConfig


def check(config: KafkaConfig) -> Sequence[Finding]:
    """All findings, the worst first. A cluster that does not answer is a finding too."""
    server = config.servers
    try:
        cluster = Cluster("check", config)
        cluster.id()
        topics = cluster.topics()
        states = cluster.states(topics)
    except DatabusError as error:
        return [Finding("error", "connect", server, str(error).removeprefix("check: "))]
    found = [
        Finding("error", "topics", server, f"no topic fits {each!r}", "create it, or correct `topics`")
        for each in missing_topics(config, list(topics))
    ]
    found += [
        Finding(
            "warning",
            "topic_ids",
            server,
            f"the cluster tells no id of the topic {name}: a topic that is deleted and created again is found only by "
            "its offsets",
        )
        for name, state in states.items()
        if not state.id
    ]
    partitions = sum(len(each.earliest) for each in states.values())
    messages = sum(sum(each.latest) - sum(each.earliest) for each in states.values())
    what = f"{len(topics)} topics with {partitions} partitions, which hold at most {messages} messages"
    return [*found, Finding("info", "topics", server, what)]
