"""A topic that was made a moment ago: what the first request brought is there, though a leader was not ready for it."""

from databus.sinks.kafka._session import KEPT
from databus.testing._change_log import ORDERS, ChangeLog
from databus.testing._staged_writes import write_batch
from tests.kafka.support import messages_in, new_prefix, output_of
from tests.outputs.harnesses import order

TOPICS = 10  # of which four lost messages, with several requests under way
ROWS = 60


def test_no_message_of_a_first_request_is_lost_where_a_leader_is_not_ready_for_it(kafka, tmp_path):
    log = ChangeLog().begin()
    for number in range(ROWS):
        log.insert(ORDERS, order(number))
    of_three = {"batch.num.messages": "3", "linger.ms": "0"}
    for number in range(TOPICS):
        prefix = new_prefix()
        output = output_of(kafka, tmp_path / str(number), prefix, kafka=of_three)
        output.open()
        write_batch(output, log.batch(0, ROWS))
        output.close()
        KEPT._sessions.clear()
        assert sum(map(len, messages_in(kafka, f"{prefix}.orders"))) == ROWS
