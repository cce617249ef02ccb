"""From any position, or none: whatever is forgotten, killed or replaced meanwhile, a consumer ends equal to SELECT."""

import os
import random
import signal
import subprocess
import sys
import threading

import pytest

from databus.client import windows
from tests.bootstrap.campaign import campaign
from tests.bootstrap.filled import Shop
from tests.bootstrap.test_service import TABLES, Copy, assert_equal

FILLER = f"INSERT INTO ballast VALUES (1, 0, '{'x' * 2000}');"


class Day:
    """Random work on the shop's tables."""

    def __init__(self, shop, dice):
        self.shop, self.dice = shop, dice

    def work(self, transactions):
        for _ in range(transactions):
            self.shop.execute(*(self._statement() for _ in range(self.dice.choice((1, 2, 5)))))

    def _statement(self):
        dice, number = self.dice, self.dice.randrange(30)
        return dice.choice(
            (
                f"INSERT OR REPLACE INTO orders VALUES ({number}, 'n{dice.randrange(99)}', {dice.randrange(9)})",
                f"UPDATE orders SET total = total + 1 WHERE id % 5 = {number % 5}",
                f"DELETE FROM orders WHERE id = {number}",
                f"UPDATE OR REPLACE orders SET id = id + 3 WHERE id = {number}",
                f"INSERT OR REPLACE INTO stock VALUES ({number % 7}, {dice.randrange(99)})",
                f"DELETE FROM stock WHERE id = {number % 7}",
            )
        )


def test_whatever_dies_and_forgets_and_is_replaced_consumers_end_equal(tmp_path, seed, monkeypatch):
    with campaign(tmp_path, random.Random(seed), monkeypatch) as found:
        rounds = 0
        while rounds < 5 or not found.kinds >= {None, "state"}:  # with some dice nobody looks back for a while
            found.round()
            rounds += 1
            assert rounds < 50


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
def test_whatever_dies_and_forgets_and_is_replaced_consumers_end_equal_in_many_rounds(tmp_path, seed, monkeypatch):
    with campaign(tmp_path, random.Random(seed), monkeypatch) as found:
        for number in range(200):
            found.round()
            sys.stdout.write(f"round {number + 1}, {sum(found.deaths.values())} deaths\n")
        assert found.kinds == {None, "state", "since", "every"}
        assert {name.partition(".")[0] for name in found.deaths} == {"bootstrap", "delta"}


SERVER = """
import sys, time
from pathlib import Path
from databus.bootstrap import BootstrapServer, load_bootstrap
server = BootstrapServer(load_bootstrap(Path(sys.argv[1]))).start()
print(server.url, flush=True)
time.sleep(600)
"""


def server_process(shop, armed=""):
    environment = {**os.environ, "DATABUS_CRASH_AT": armed}
    command = [sys.executable, "-c", SERVER, str(shop.config.path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
    return process, process.stdout.readline().strip()


def replaced(shop, victim, url):
    """Have the relay name another service once this one has died."""
    victim.wait()
    shop.name_service(url)


@pytest.mark.nightly  # it starts three processes
def test_a_service_that_is_killed_while_it_answers_is_followed_by_another(tmp_path):
    """Before a part goes out, and after it: what came counts, the rest comes from the other one."""
    with Shop(tmp_path, TABLES + FILLER).captured_by_a_relay() as shop:
        day = Day(shop, random.Random(1))
        day.work(30)
        shop.fill()
        shop.forget()
        heir, heirs_url = server_process(shop)
        try:
            for armed in ("bootstrap.part.before:3", "bootstrap.part.after:2"):
                victim, url = server_process(shop, armed)
                shop.name_service(url)
                threading.Thread(target=replaced, args=(shop, victim, heirs_url), daemon=True).start()
                consumer = Copy()
                with windows(shop.url, follow=False) as following:
                    for window in following:
                        consumer.take(window)
                assert victim.wait(30) == -signal.SIGKILL
                assert consumer.pairs == sorted({*consumer.pairs})
                assert_equal(shop, consumer)
        finally:
            heir.kill()
            heir.wait()


@pytest.mark.parametrize("point", ["bootstrap.note.between", "bootstrap.note.after"])
def test_a_service_that_is_killed_while_it_notes_notes_it_the_next_time(tmp_path, point, monkeypatch):
    """Whoever asks meanwhile is given what was noted before."""

    class Died(BaseException):
        pass

    def die(name):
        if name == point:
            raise Died

    with Shop(tmp_path, TABLES + FILLER).running() as shop:
        day = Day(shop, random.Random(2))
        day.work(10)
        shop.fill()
        shop.forget()
        day.work(10)
        monkeypatch.setattr("databus.bootstrap._noting.crash_point", die)
        with pytest.raises(Died):
            shop.fill()
        monkeypatch.undo()
        consumers = [Copy(), Copy()]
        for consumer in consumers:
            with windows(shop.url, follow=False) as following:
                for window in following:
                    consumer.take(window)
            assert_equal(shop, consumer)
            shop._noting = None
            shop.note()
