"""Is a cluster fit to be read? What `databus check-source` says of it."""

from collections.abc import Sequence

from databus.core import DatabusError
from databus.sources._capabilities import Finding
from databus.sources.kafka._cluster import KafkaCluster, missing_topics
from databus.sources.kafka._config import KafkaConfig


def check(config: KafkaConfig) -> Sequence[Finding]:
    """All findings, the worst first. A cluster that does not answer is a finding too."""
    server = config.servers
    try:
        cluster = KafkaCluster("check", config)
        cluster.id()
        topics = cluster.topics()
        states = cluster.states(topics)
    except DatabusError as error:
        return [Finding("error", "connect", server, str(error).removeprefix("check: "))]
    findings = [
        Finding("error", "topics", server, f"no topic fits {topic!r}", "create it, or correct `topics`")
        for topic in missing_topics(config, list(topics))
    ]
    findings += [
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
    partitions = sum(len(state.earliest) for state in states.values())
    messages = sum(sum(state.latest) - sum(state.earliest) for state in states.values())
    what = f"{len(topics)} topics with {partitions} partitions, which hold at most {messages} messages"
    return [*findings, Finding("info", "topics", server, what)]
