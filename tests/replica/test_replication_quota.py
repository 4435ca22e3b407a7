"""The rate of throttled replicas, by the clock."""

from __future__ import annotations

import pytest

from broker.clock import ManualClock
from broker.replica.replication_quota import ReplicationQuota


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def quota(clock: ManualClock) -> ReplicationQuota:
    made = ReplicationQuota(3, samples=4, window_s=2.0, clock=clock)
    made.rate = 100
    return made


def test_bytes_above_the_rate_have_to_be_waited_for(quota: ReplicationQuota, clock: ManualClock) -> None:
    assert not quota.is_exceeded
    quota.record(200)
    assert not quota.is_exceeded, "as many as in one sample"
    quota.record(100)
    assert quota.delay_s() == pytest.approx(1.0)
    clock.advance(2_500)
    assert quota.is_exceeded
    clock.advance(500)
    assert not quota.is_exceeded
    quota.record(1)
    assert quota.is_exceeded


def test_what_is_older_than_the_samples_is_forgotten(quota: ReplicationQuota, clock: ManualClock) -> None:
    quota.record(1_000_000)
    assert quota.delay_s() == pytest.approx(8.0), "no longer than it is remembered"
    clock.advance(7_900)
    quota.record(100)
    assert quota.is_exceeded
    clock.advance(100)
    assert not quota.is_exceeded


def test_the_rate_of_what_was_replicated_lately(quota: ReplicationQuota, clock: ManualClock) -> None:
    assert quota.byte_rate == 0
    quota.record(400)
    clock.advance(4_000)
    quota.record(200)
    assert quota.byte_rate == pytest.approx(150)
    clock.advance(4_000)
    assert quota.byte_rate == pytest.approx(50), "the first sample is forgotten"


def test_a_steady_stream_gets_its_rate(quota: ReplicationQuota, clock: ManualClock) -> None:
    sent = 0
    for _ in range(600):
        if not quota.is_exceeded:
            quota.record(50)
            sent += 50
        clock.advance(100)
    assert sent == pytest.approx(60 * quota.rate, rel=0.1)


def test_without_a_rate_nobody_waits_and_at_zero_everybody(quota: ReplicationQuota, clock: ManualClock) -> None:
    quota.rate = 0
    assert not quota.is_exceeded, "nothing was replicated yet"
    quota.record(1)
    assert quota.delay_s() == pytest.approx(8.0)
    assert not ReplicationQuota(3, clock=clock).is_exceeded
    unlimited = ReplicationQuota(3, clock=clock)
    unlimited.record(1 << 40)
    assert not unlimited.is_exceeded


def test_replicas_are_named_by_partition_and_broker_or_all_at_once(quota: ReplicationQuota) -> None:
    assert quota.applies_to(("1:3",), 1)
    assert quota.applies_to(("0:1", "1:3"), 1)
    assert quota.applies_to(("*",), 7)
    assert not quota.applies_to((), 1)
    assert not quota.applies_to(("1:4", "3:1", "11:3"), 1)
