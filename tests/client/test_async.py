"""The same windows in an event loop: nothing else waits for them, and a task that is cancelled has lost none."""

import asyncio
import time

import pytest

from databus.client import windows
from databus.core import ServiceUnavailable
from tests.client.conftest import captured, mock, wait_for
from tests.client.stub import Stub, mock_groups


@pytest.mark.parametrize("is_batched", [False, True])
def test_an_event_loop_gets_the_windows_that_a_thread_gets(relay_of, is_batched, readers):
    relay = relay_of(shop=mock(transactions_total=50), crm=mock(transactions_total=30))
    captured(relay, 50)
    captured(relay, 30, "crm")

    async def taken():
        async with windows(relay.url, follow=False) as following:
            found = [each async for each in (following.batches(1) if is_batched else following)]
        return sorted((each.physical, each.scn) for each in found), following.checkpoint

    with windows(relay.url, follow=False) as following:
        wanted = sorted((each.physical, each.scn) for each in (following.batches(1) if is_batched else following))
    assert asyncio.run(taken()) == (wanted, following.checkpoint)
    assert readers() == []


def test_the_loop_goes_on_while_a_relay_is_asked():
    """The relay answers from the same loop: whoever held that up would never hear it."""

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\nx-dbus-error: ServiceUnavailable\r\n\r\n")
        await writer.drain()
        writer.close()

    async def ask():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        async with server:
            with pytest.raises(ServiceUnavailable):
                async with windows(f"http://{host}:{port}"):
                    pass
            with pytest.raises(ServiceUnavailable):
                await anext(windows(f"http://{host}:{port}"))

    asyncio.run(asyncio.wait_for(ask(), 20))


def test_a_wait_that_is_cancelled_takes_nothing_and_the_next_goes_on(readers):
    source, groups = mock_groups(2, rows_per_transaction=400, group_bytes_max=20_000)
    with Stub(source, groups) as stub:
        stub.groups_max = 2  # parts of the first transaction; then it is away

        async def follow():
            async with windows(stub.url) as following:
                rows = sum([len(await anext(following)) for _ in range(2)])
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await anext(following)
                assert following.checkpoint.sources["shop"].seq is not None
                stub.groups_max = None
                stub.away.clear()
                async for window in following:
                    rows += len(window)
                    if window.scn == 2 and not window.continues:
                        return rows
            return 0

        rows = asyncio.run(follow())
    assert rows == sum(source.expected_rows(table.source, 2) for table in source.tables())
    assert readers() == []


def test_a_task_that_is_cancelled_while_it_waits_leaves_in_good_order(readers):
    source, groups = mock_groups(2)
    with Stub(source, groups) as stub:
        seen = []

        async def follow():
            async with windows(stub.url) as following:
                async for window in following:
                    seen.append(window.scn)  # noqa: PERF401 - while it goes on, others look at it

        async def cancel():
            task = asyncio.create_task(follow())
            await asyncio.to_thread(wait_for, lambda: len(seen) == 2, "both windows")
            task.cancel()
            began = time.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await task
            return time.monotonic() - began

        assert asyncio.run(cancel()) < 5
    assert seen == [1, 2]
    wait_for(lambda: not readers(), "the end of the readers")


def test_other_tasks_have_their_turn_while_windows_are_there(relay_of):
    relay = relay_of(shop=mock(transactions_total=20))
    captured(relay, 20)

    async def race():
        turns = 0

        async def tick():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with windows(relay.url, follow=False) as following:
            await asyncio.to_thread(wait_for, lambda: following._lanes[0].reader.channel.bytes_waiting, "windows")
            ticking = asyncio.create_task(tick())
            async for _window in following:
                time.sleep(0.02)  # noqa: ASYNC251 - a body that keeps the event loop for longer than one turn
            ticking.cancel()
        return turns

    assert asyncio.run(race()) >= 19


def test_closing_ends_the_loop_of_another_task():
    source, groups = mock_groups(1)
    with Stub(source, groups) as stub:

        async def follow():
            async with windows(stub.url) as following:
                assert (await anext(following)).scn == 1
                asyncio.get_running_loop().call_later(0.05, following.close)
                return [window.scn async for window in following]

        assert asyncio.run(asyncio.wait_for(follow(), 20)) == []


def test_in_an_event_loop_that_somebody_else_runs_the_plain_loop_works_too(relay_of, readers):
    """As in a notebook."""
    relay = relay_of(shop=mock(transactions_total=5))
    captured(relay, 5)

    async def cell():
        following = windows(relay.url, follow=False)
        found = [window.scn for window in following]
        following.close()
        return found

    assert asyncio.run(cell()) == [1, 2, 3, 4, 5]
    assert readers() == []
