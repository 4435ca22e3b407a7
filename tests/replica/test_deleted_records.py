"""DeleteRecords at the leader of several replicas: it waits for all of them. Followers are played by the test."""

from __future__ import annotations

import asyncio
import weakref

import pytest

from broker.errors import BrokerError, ErrorCode
from tests.replica.test_replicated_partition import Leader, code_of, leader
from tests.support.delayed import WaitingFetch

__all__ = ["leader"]


async def test_a_deletion_waits_for_all_live_replicas(leader: Leader) -> None:
    """In the ISR or not. One whose broker is gone learns of it when it comes back."""
    leader.append(5)
    leader.fetch(2, 3)
    follower = WaitingFetch([leader.partition], replica=True)
    consumer = WaitingFetch([leader.partition])
    leader.partition.delete_records(3)
    await follower.wait()
    assert consumer in leader.partition.waiters, "there is nothing to read for it"
    waiting = leader.partition.until_deleted(3)
    assert waiting is not None
    leader.partition.fetched_by(2, 5, log_start_offset=3)
    leader.partition.fetched_by(3, 5, log_start_offset=2)
    leader.partition.fetched_by(3, 5, log_start_offset=-1)
    assert not waiting.done()
    assert leader.partition.low_watermark == 2
    leader.partition.fetched_by(3, 5, log_start_offset=4)
    assert waiting.done()
    assert waiting.result() is None
    assert leader.partition.until_deleted(3) is None

    leader.partition.delete_records(5)
    waiting = leader.partition.until_deleted(5)
    assert waiting is not None
    leader.partition.fetched_by(2, 5, log_start_offset=5)
    del leader.brokers[3]
    assert not waiting.done()
    leader.partition.brokers_changed()
    assert waiting.done()
    leader.brokers[3] = 31
    assert leader.partition.low_watermark == 4


async def test_a_deletion_that_waits_learns_of_new_replicas_and_of_a_new_leader(leader: Leader) -> None:
    leader.append(2)
    leader.fetch(2, 3)
    leader.partition.delete_records(2)
    leader.partition.fetched_by(2, 2, log_start_offset=2)
    waiting = leader.partition.until_deleted(2)
    assert waiting is not None
    leader.state(1, 2, version=8, replicas=(1, 2))
    assert waiting.done(), "broker 3 is no replica any more"
    leader.state(1, 2, version=9, replicas=(1, 2, 3))
    waiting = leader.partition.until_deleted(2)
    leader.partition.close()
    assert code_of(waiting) is ErrorCode.not_leader_or_follower
    with pytest.raises(BrokerError, match="not led here"):
        leader.partition.until_deleted(2)


async def test_a_deletion_that_nobody_waits_for_is_forgotten(leader: Leader) -> None:
    leader.append()
    leader.fetch(2, 3)
    leader.partition.delete_records(1)
    waiting = leader.partition.until_deleted(1)
    assert waiting is not None
    known = weakref.ref(waiting)
    waiting.cancel()
    del waiting
    await asyncio.sleep(0)
    assert known() is None
