"""Changes that a callback cannot take: they wait, with what follows of their keys, and nothing else does."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from databus.client import CallKind, Client, Consumer, ConsumerFailed, Partition, _consumer_loop, _letter_folder
from databus.core import ConfigError, LimitExceeded, ServiceUnavailable
from tests.client.parking import QUICK, Copy, Parts, World


@pytest.fixture(autouse=True)
def _looks_at_once(monkeypatch):
    for module in (_consumer_loop, _letter_folder):
        monkeypatch.setattr(module, "LOOK_S", 0)


def order(number, note="x", n=0):
    return {"id": number, "note": note, "n": n}


def bad(row):
    return row["note"] == "bad"


@pytest.fixture
def world(tmp_path):
    return World(Parts(), tmp_path / "letters", refuses=bad)


def delivered(world):
    return [each.pair for what, each in world.taken if what == "row"]


def test_one_refused_change_among_many_is_a_letter_and_the_others_are_taken(world):
    feed = world.feed
    for number in range(1, 6):
        feed.insert("main.orders", order(number, "bad" if number == 3 else "x"))
    feed.commit()
    feed.update("main.orders", order(3, "bad"), order(3, "fine")).update(
        "main.orders", order(4), order(4, "y")
    ).commit()
    world.run()
    assert world.notes() == {1: "x", 2: "x", 4: "y", 5: "x"}
    assert world.pairs == [(1, 3), (2, 1), (2, 2)]
    assert world.checkpoint.sources["shop"].scn == 2
    (found, *_rest) = world.letters.read()
    assert (found.source, found.letters[0].id, found.letters[0].reason) == (
        "shop/main.orders", "3", "ValueError: no such note: bad",
    )  # fmt: skip
    world.run()
    assert world.pairs == [(1, 3), (2, 1), (2, 2)]
    assert world.letters.replay() == 3
    world.run()
    assert world.pairs == [(1, 3), (2, 1), (2, 2)]
    world.refuses = lambda _row: False
    world.run()  # who has failed once more is not tried until somebody asks
    assert len(world.pairs) == 3
    world.letters.replay(["shop/main.orders"])
    world.run()
    assert (world.pairs, world.notes()[3]) == ([], "fine")
    assert delivered(world)[-2:] == [(1, 3), (2, 2)]


def test_options_that_go_together_are_asked_for(tmp_path):
    given = {"relay": "http://127.0.0.1:1", "consumer": Consumer()}
    with pytest.raises(ConfigError, match="needs dead_letters=FOLDER"):
        Client(**given, on_failure="park")
    with pytest.raises(ConfigError, match='without on_failure="park"'):
        Client(**given, dead_letters=tmp_path)
    with pytest.raises(ConfigError, match="on_failure: is stop or park"):
        Client(**given, on_failure="ignore", dead_letters=tmp_path)


def test_a_changed_key_parks_both_and_what_follows_of_them(world):
    feed = world.feed
    feed.insert("main.orders", order(1)).insert("main.orders", order(2)).insert("main.orders", order(5)).commit()
    feed.update("main.orders", order(1), order(1, "bad")).commit()
    feed.update("main.orders", order(1, "bad"), order(9)).commit()
    feed.update("main.orders", order(9), order(9, "y")).insert("main.orders", order(1, "new")).commit()
    feed.update("main.orders", order(2), order(2, "z")).commit()
    world.run()
    assert world.notes() == {1: "x", 2: "z", 5: "x"}
    assert [pair[0] for pair in world.pairs] == [2, 2, 3, 3, 4, 4, 4]
    world.refuses = lambda _row: False
    world.letters.replay()
    world.run()
    assert world.notes() == {1: "new", 2: "z", 5: "x", 9: "y"}
    assert delivered(world)[-4:] == [(2, 2), (3, 2), (4, 2), (4, 3)]


def test_rows_without_a_key_are_letters_each_by_itself(world):
    for note in ("x", "bad", "x"):
        world.feed.insert("main.notes", {"note": note}).commit()
    world.run().run()
    assert delivered(world) == [(1, 1), (3, 1)]
    assert world.pairs == [(2, 1)]
    assert world.letters.drop() == 1
    assert world.run().pairs == []


def test_a_truncation_forgets_what_is_over(world):
    feed = world.feed
    feed.insert("main.orders", order(1, "bad")).insert("main.orders", order(2)).commit()
    world.run()
    assert world.pairs == [(1, 1)]
    feed.truncate().insert("main.orders", order(1, "later")).commit()
    world.run()
    assert (world.notes(), world.pairs) == ({1: "later"}, [])


def test_a_whole_snapshot_forgets_what_was_before_it(world):
    feed = world.feed
    feed.insert("main.orders", order(1, "bad")).insert("main.orders", order(2)).commit()
    feed.snapshot("main.orders", [order(1, "read"), order(2, "read")])
    feed.update("main.orders", order(1, "read"), order(1, "last")).commit()
    world.run()
    assert world.notes() == {2: "read"}
    assert (1, 1) not in world.pairs  # what was read of the key is a letter, and what follows
    assert len(world.pairs) == 3
    world.letters.replay()
    world.run()
    assert (world.notes(), world.pairs) == ({1: "last", 2: "read"}, [])
    assert (1, 1) not in delivered(world)


def test_letters_are_bounded_and_the_client_says_what_to_do(world):
    world.config = replace(QUICK, dead_letters_max=2)
    for number in range(1, 5):
        world.feed.insert("main.orders", order(number, "bad" if number != 2 else "x")).commit()
    with pytest.raises(LimitExceeded, match=r"dead_letters_max=2: `databus dead-letters show"):
        world.run()
    assert world.pairs == [(1, 1), (3, 1)]
    assert world.checkpoint.sources["shop"].scn == 3
    world.letters.drop()
    world.run()
    assert world.pairs == [(4, 1)]


def test_a_target_that_is_out_of_order_stops_the_client_and_parks_little(world):
    world.config = replace(QUICK, refused_in_a_row_max=3)
    for number in range(1, 9):
        world.feed.insert("main.orders", order(number)).commit()
    world.refuses = lambda row: row.key[0] > 2
    with pytest.raises(ConsumerFailed, match="4 changes in a row have failed by themselves, more than refused_in"):
        world.run()
    assert world.pairs == [(3, 1), (4, 1), (5, 1)]
    world.refuses = lambda _row: False
    world.letters.replay()
    world.run()
    assert world.pairs == []
    assert world.notes() == dict.fromkeys(range(1, 9), "x")


@pytest.mark.parametrize("error", [ConnectionRefusedError("no"), ServiceUnavailable("away"), TimeoutError()])
def test_an_error_that_no_row_is_to_blame_for_parks_nothing(world, error):
    world.feed.insert("main.orders", order(1)).insert("main.orders", order(2)).commit()

    def refuses(_row):
        raise error

    world.refuses = refuses
    with pytest.raises(ConsumerFailed, match="retries_max=1"):
        world.run()
    assert world.pairs == []


def test_a_control_that_fails_stops_the_client(world):
    class Refuses(Copy):
        def on_control(self, control):
            raise ValueError("no controls here")

    world.feed.insert("main.orders", order(1)).commit().truncate()
    with pytest.raises(ConsumerFailed, match="on_control"):
        world.run(consumer=Refuses)
    assert world.pairs == []


def test_a_window_that_fails_as_a_whole_and_in_no_row_stops_the_client(world):
    class Refuses(Copy):
        def on_end_window(self, window):
            if len(window) > 1:
                raise ValueError("too many")
            super().on_end_window(window)

        def on_checkpoint(self, checkpoint):
            if checkpoint.sources["shop"].scn == 2:
                raise ValueError("not this one")

    world.feed.insert("main.orders", order(1)).insert("main.orders", order(2)).commit()
    world.feed.insert("main.orders", order(3)).commit()
    with pytest.raises(ConsumerFailed, match="on_checkpoint failed"):
        world.run(consumer=Refuses)
    assert world.checkpoint.sources["shop"].scn == 1
    assert world.pairs == []


def test_changes_that_come_by_themselves_say_so_and_move_no_place(world):
    feed = world.feed
    feed.insert("main.orders", order(1)).commit()
    feed.insert("main.orders", order(2)).insert("main.orders", order(3, "bad")).commit()
    found = []

    class Looks(Copy):
        def on_start_window(self, window):
            super().on_start_window(window)
            found.append((window.is_replayed, [row.pair for row in window.rows()], window.checkpoint))

    world.run(consumer=Looks)
    assert [(is_replayed, pairs) for is_replayed, pairs, _ in found] == [
        (False, [(1, 1)]), (False, [(2, 1), (2, 2)]), (False, [(2, 1), (2, 2)]), (True, [(2, 1)]), (True, [(2, 2)]),
    ]  # fmt: skip
    assert [checkpoint.sources["shop"].pair[0] for _, _, checkpoint in found] == [1, 2, 2, 1, 1]
    found.clear()
    world.refuses = lambda _row: False
    world.letters.replay()
    world.run(consumer=Looks)
    ((is_replayed, pairs, checkpoint),) = found
    assert (is_replayed, pairs, checkpoint) == (True, [(2, 2)], world.checkpoint)


def test_letters_of_another_client_are_not_taken_for_its_own(world):
    world.run()
    with pytest.raises(ConfigError, match="has the dead letters of the client ''; this one is 'billing'"):
        world.run(name="billing")


def test_dropped_letters_park_their_keys_no_longer(world):
    feed = world.feed
    feed.insert("main.orders", order(1, "bad")).commit()
    world.run()
    dropped = []

    class Drops(Copy):
        def on_start_window(self, window):
            super().on_start_window(window)
            if not dropped:  # while the client runs
                dropped.append(world.letters.drop())

    feed.insert("main.orders", order(7)).commit()
    feed.update("main.orders", order(1, "bad"), order(1, "y")).commit()
    world.run(consumer=Drops)
    assert (dropped, world.pairs, world.notes()) == ([1], [], {1: "y", 7: "x"})


class Part:
    """A partition that is held."""

    def __init__(self, partition):
        self.hold = SimpleNamespace(partition=partition, fence=7)
        self.called_at = None
        self.asked = 0

    def may_make(self, call):
        return True

    def has_failed(self, error):
        return False


def test_letters_that_were_written_when_the_lease_had_ended_are_taken_back(world):
    class Late(Part):
        def may_make(self, call):
            self.asked += call.kind is CallKind.PARK
            return call.kind is not CallKind.PARK or self.asked % 2 == 1  # before they are written, not after

    world.feed.insert("main.orders", order(1, "bad")).insert("main.orders", order(2)).commit()
    with pytest.raises(ConsumerFailed, match="keeping dead letters failed"):
        world.run(part=Late(Partition(0, 1)))
    assert world.pairs == []
    assert "shop" not in world.checkpoint.sources or world.checkpoint.sources["shop"].scn == 0


@pytest.mark.parametrize("of", [1, 2, 8])
def test_letters_are_replayed_by_the_partition_of_their_key(world, of):
    for number in range(1, 20):
        world.feed.insert("main.orders", order(number, "bad")).commit()
    world.config = replace(QUICK, refused_in_a_row_max=100)
    world.run()
    world.refuses = lambda _row: False
    world.letters.replay()
    taken = []
    for number in range(of):
        world.taken.clear()
        world.run(part=Part(Partition(number, of)))
        mine = [each.key_hash % of for what, each in world.taken if what == "row"]
        assert set(mine) <= {number}
        taken += mine
    assert len(taken) == 19
    assert world.pairs == []
