"""Many deadlines on one timer of the event loop."""

from __future__ import annotations

import asyncio

import pytest

from broker.clock import ManualClock, SystemClock
from broker.coordinator.deadline_timer import DeadlineTimer


async def test_due_callbacks_run_in_order_and_once() -> None:
    clock = ManualClock()
    timer = DeadlineTimer(clock)
    called: list[int] = []
    for deadline in (3, 1, 2):
        timer.at(deadline, lambda deadline=deadline: called.append(deadline))  # type: ignore[misc]
    clock.advance(2_000)
    timer.run_due()
    timer.run_due()
    assert called == [1, 2]
    timer.close()


async def test_the_loop_calls_without_being_asked() -> None:
    clock = SystemClock()
    timer = DeadlineTimer(clock)
    called, ended = list[str](), asyncio.Event()
    start = clock.monotonic()
    timer.at(start + 0.05, ended.set)
    timer.at(start + 0.05, lambda: called.append("late"))
    timer.at(start + 0.01, lambda: called.append("early"))
    await asyncio.wait_for(ended.wait(), 60)
    assert clock.monotonic() >= start + 0.05
    timer.run_due()
    assert called == ["early", "late"]
    timer.close()


async def test_a_callback_that_fails_does_not_keep_the_others_waiting(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("broken")

    timer = DeadlineTimer(SystemClock())
    called = asyncio.Event()
    timer.at(0, fail)
    timer.at(0, called.set)
    await asyncio.wait_for(called.wait(), 60)
    assert "broken" in caplog.text
    timer.close()


async def test_callback_may_set_the_next_deadline() -> None:
    clock = SystemClock()
    timer = DeadlineTimer(clock)
    rounds: list[float] = []
    done = asyncio.Event()

    def again() -> None:
        rounds.append(clock.monotonic())
        if len(rounds) < 3:
            timer.at(clock.monotonic() + 0.005, again)
        else:
            done.set()

    timer.at(clock.monotonic(), again)
    await asyncio.wait_for(done.wait(), 60)
    assert len(rounds) == 3
    timer.close()


async def test_closed_timer_calls_nobody() -> None:
    clock = ManualClock()
    timer = DeadlineTimer(clock)
    called: list[int] = []
    timer.at(1, lambda: called.append(1))
    timer.close()
    timer.at(1, lambda: called.append(2))
    clock.advance(2_000)
    timer.run_due()
    assert called == []


async def test_what_has_arrived_while_the_broker_stood_still_comes_before_the_deadlines() -> None:
    clock = ManualClock()
    timer = DeadlineTimer(clock)
    seen: list[str] = []
    ended = asyncio.Event()

    def end() -> None:
        seen.append("deadline")
        ended.set()

    timer.at(clock.monotonic() + 0.01, end)
    clock.advance(60_000)
    asyncio.get_running_loop().call_later(0.1, seen.append, "heartbeat")
    await asyncio.wait_for(ended.wait(), 60)
    assert seen == ["heartbeat", "deadline"]
    timer.close()


async def test_a_broker_that_is_always_late_keeps_its_deadlines_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class RunningClock(ManualClock):
        def monotonic(self) -> float:
            self.advance(1_000)
            return super().monotonic()

    monkeypatch.setattr("broker.coordinator.deadline_timer._GRACE_S", 0.001)
    timer = DeadlineTimer(RunningClock())
    ended = asyncio.Event()
    timer.at(0, ended.set)
    await asyncio.wait_for(ended.wait(), 60)
    timer.close()


async def test_the_heartbeats_that_are_read_do_not_use_the_grace_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.coordinator.deadline_timer._GRACE_S", 1000.0)  # it ends when the test says so
    clock = ManualClock()
    timer = DeadlineTimer(clock)
    seen: list[str] = []
    timer.at(clock.monotonic() + 0.01, lambda: seen.append("deadline"))
    clock.advance(60_000)
    async with asyncio.timeout(60):
        while not timer._graces:
            await asyncio.sleep(0.002)
    for _ in range(30):  # one after another, as connections are served
        await asyncio.sleep(0.002)
        timer.at(clock.monotonic() + 30, lambda: None)
        seen.append("heartbeat")
    assert timer._graces == 1
    clock.advance(1000_000)
    timer._fire()
    assert seen == ["heartbeat"] * 30 + ["deadline"]
    timer.close()
