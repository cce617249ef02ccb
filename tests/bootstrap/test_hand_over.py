"""From any position, or none: whatever is forgotten, killed or replaced meanwhile, a consumer ends equal to SELECT."""

import copy
import os
import random
import signal
import subprocess
import sys
import threading

import pytest

from databus.bootstrap import BootstrapServer
from databus.client import windows
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


def follow_in_pieces(shop, consumer, dice):
    """Take windows until all is there; the consumer dies at random, and begins again with what it saved."""
    saved = copy.deepcopy(consumer)
    for _ in range(200):
        consumer = copy.deepcopy(saved)
        dies_after = dice.randrange(1, 12) if dice.random() < 0.7 else None
        with windows(shop.url, follow=False, checkpoint=consumer.checkpoint) as following:
            for number, window in enumerate(following):
                consumer.take(window)
                if dice.random() < 0.5:
                    saved = copy.deepcopy(consumer)
                if number == dies_after:
                    break
            else:
                assert consumer.pairs == sorted(consumer.pairs)
                return consumer
    raise AssertionError("does not come to an end")


def rounds(folder, dice, count):
    with Shop(folder, TABLES + FILLER).captured_by_a_relay() as shop:
        day, consumers = Day(shop, dice), [Copy()]
        servers = [BootstrapServer(shop.config).start() for _ in range(2)]
        try:
            day.work(10)
            shop.fill()
            for _ in range(count):
                shop.name_service(dice.choice(servers).url)
                day.work(dice.randrange(1, 25))
                if dice.random() < 0.7:
                    shop.fill()
                if dice.random() < 0.7:
                    shop.forget()
                day.work(dice.randrange(4))
                shop.captured()
                number = dice.randrange(len(consumers))
                consumers[number] = follow_in_pieces(shop, consumers[number], dice)
                assert_equal(shop, consumers[number])
                if dice.random() < 0.3:
                    consumers.append(Copy())
        finally:
            for server in servers:
                server.stop()
        return {kind for each in consumers for kind in each.kinds}


def test_consumers_that_die_and_relays_that_forget_lose_nothing(tmp_path, seed):
    assert rounds(tmp_path, random.Random(seed), 5)


@pytest.mark.soak
def test_consumers_that_die_and_relays_that_forget_lose_nothing_in_many_rounds(tmp_path, seed):
    assert rounds(tmp_path, random.Random(seed), 200) == {None, "state", "since"}


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
