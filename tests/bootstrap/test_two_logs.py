"""Rows of two relays' logs in one log store: each is taken by the numbers of its own log, whichever relay answers."""

import pytest

from databus.bootstrap import AnswerRequest, EveryChange, plan
from databus.bootstrap._kept_stores import PhysicalStores
from databus.bootstrap._noting import Noting
from databus.core import SEQ_DONE, SourceCheckpoint
from databus.flow import log_number
from databus.link import RelayClient
from tests.bootstrap.filled import PHYSICAL, Shop
from tests.bootstrap.followers import Follower
from tests.bootstrap.test_service import TABLES, churn

ASK = AnswerRequest(PHYSICAL, frozenset({"main.orders", "main.stock"}), every=True)


@pytest.fixture
def shop(tmp_path):
    filler = f"INSERT INTO ballast VALUES (1, 0, '{'x' * 2000}');"
    with Shop(tmp_path, TABLES + filler).running() as shop:
        churn(shop, 1, 8)
        yield shop


def noted_as(shop, log):
    """Note, where the relay that answers has this log."""
    at, state, definitions, _ = shop.noted()
    shop._noting = shop._noting or Noting(shop.config, PHYSICAL)
    return shop._noting.look(at, state, definitions, log)


def test_the_rows_log_is_that_which_they_came_from_whichever_relay_is_asked(shop):
    own = shop.client.head(PHYSICAL).log
    shop.fill()
    assert shop.head().position.log == own
    churn(shop, 8, 10)
    shop.note = lambda: None
    shop.fill()
    noted_as(shop, "of the other relay")
    assert shop.head().position.log == own


def test_a_log_that_no_relay_has_any_more_is_none_that_a_position_could_mean(shop):
    own = shop.client.head(PHYSICAL).log
    shop.note = lambda: noted_as(shop, "of the other relay")
    shop.fill()
    assert shop.head().position.log == f"unnamed-{log_number(own):x}"


def ranges(shop, position=None):
    """The ranges in which every change comes, with the log that each is of."""
    kept, found = PhysicalStores(shop.config.root, PHYSICAL).look().kept, []
    while position is None or position.pair < kept.head.position.pair:
        answer = plan(position, ASK, kept)
        assert isinstance(answer, EveryChange)
        found.append((answer.start.pair, answer.end.pair, answer.log))
        position = answer.end
    return found


def test_rows_of_two_logs_are_kept_apart(shop, monkeypatch):
    """No answer has rows of both, and a position inside of one is compared with rows of that one alone."""
    own, ends = shop.client.head(PHYSICAL).log, []
    stream = RelayClient.stream
    for log in (own, "B"):

        def as_of(self, *args, log=log, **more):
            found = stream(self, *args, **more)
            found.log = log
            return found

        for _ in range(2):
            with monkeypatch.context() as patched:
                patched.setattr(RelayClient, "stream", as_of)
                patched.setattr(shop, "note", lambda log=log: noted_as(shop, log))
                churn(shop, 8 + 3 * len(ends), 11 + 3 * len(ends))
                shop.fill()
            ends.append(shop.written["log"].pair)
    first, second, third, last = ends
    assert [(end, log) for _, end, log in ranges(shop)] == [(second, own), (third, f"{own}+B"), (last, "B")]
    head = shop.head()
    assert [head.log_at(pair) for pair in (first, second, third, last)] == [own, own, f"{own}+B", "B"]
    kept = PhysicalStores(shop.config.root, PHYSICAL).look().kept
    for scn, log in ((third[0], own), (third[0], "B"), (last[0], own), (second[0], "B")):
        inside = SourceCheckpoint(head.position.uuid, scn, seq=3, log=log)
        assert plan(inside, ASK, kept).start.pair == (scn - 1, SEQ_DONE), "the transaction comes again"
    for scn, log in ((second[0], own), (last[0], "B")):
        inside = SourceCheckpoint(head.position.uuid, scn, seq=3, log=log)
        assert plan(inside, ASK, kept).start == inside
    shop.forget()
    assert Follower().follow(shop.url, look_back="all").is_as(shop, "main.orders", "main.stock")
