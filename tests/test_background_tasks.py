"""Tasks that nobody waits for: whatever they raise is told once."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from broker.background_tasks import BackgroundTasks
from broker.errors import BrokerError, ErrorCode


async def fail(error: Exception) -> None:
    await asyncio.sleep(0)
    raise error


async def test_a_failure_is_logged_when_it_happens(caplog: pytest.LogCaptureFixture) -> None:
    tasks = BackgroundTasks()
    await asyncio.wait([tasks.begin("the work", fail(ValueError("a bug")))])
    assert not tasks
    [record] = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "the work failed")
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "a bug"


async def test_an_expected_failure_is_one_line_and_told_again_only_when_it_changes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = BackgroundTasks()

    async def run(text: str = "") -> None:
        error = BrokerError(ErrorCode.request_timed_out, text)
        await asyncio.wait([tasks.begin("reading", fail(error) if text else asyncio.sleep(0))])

    for text in ("away", "away", "gone", "", "gone"):
        await run(text)
    assert [record.getMessage() for record in caplog.records] == [
        "reading failed: REQUEST_TIMED_OUT (7): away",
        "reading failed: REQUEST_TIMED_OUT (7): gone",
        "reading failed: REQUEST_TIMED_OUT (7): gone",
    ]
    assert {record.exc_info for record in caplog.records} == {None}


async def test_work_that_somebody_waits_for_fails_there_and_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="a bug"):
        await BackgroundTasks().finish("the work", fail(ValueError("a bug")))
    gc.collect()
    assert not caplog.records


async def test_the_failure_of_work_that_its_caller_watches_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    tasks = BackgroundTasks()
    task = tasks.add(fail(ValueError("a bug")))
    await tasks.wait()
    assert str(task.exception()) == "a bug"
    assert not tasks
    assert not caplog.records


async def test_work_goes_on_without_its_caller_and_its_failure_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    tasks, going_on = BackgroundTasks(), asyncio.Event()

    async def work() -> None:
        await going_on.wait()
        raise ValueError("a bug")

    caller = asyncio.ensure_future(tasks.finish("the work", work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()
    assert tasks
    going_on.set()
    await tasks.wait()
    await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records] == ["the work failed"]


async def test_closing_cancels_all_and_tells_what_fails_then(caplog: pytest.LogCaptureFixture) -> None:
    tasks = BackgroundTasks()

    async def fails_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("a bug")

    ended = tasks.begin("one", asyncio.Event().wait())
    tasks.begin("two", fails_to_end())
    await asyncio.sleep(0)
    await tasks.close()
    await asyncio.sleep(0)
    assert ended.cancelled()
    assert [record.getMessage() for record in caplog.records] == ["two failed"]
