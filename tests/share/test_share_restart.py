"""The state of share partitions after kill -9 of the broker that coordinates them."""

from __future__ import annotations

from pathlib import Path

from broker.errors import ErrorCode
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests
from tests.support.raw_share_states import ShareStates


def test_what_was_answered_is_there_after_a_kill(tmp_path: Path) -> None:
    overrides = {"share.coordinator.snapshot.update.records.per.snapshot": "3"}
    with BrokerProcess(tmp_path, overrides, standalone=True) as broker:
        with Requests(broker.bootstrap) as ask:
            topic_id = ask.create("t")
            shares = ShareStates(ask, "g", topic_id).ready()
            assert shares.initialize(1, 0).error_code is ErrorCode.none
            shares.read(leader_epoch=2)
            for offset in range(1, 18):
                batch = {
                    "first_offset": offset + 5,
                    "last_offset": offset + 5,
                    "delivery_state": 2,
                    "delivery_count": 1,
                }
                result = shares.write(offset, leader_epoch=2, state_batches=[batch])
                assert result.error_code is ErrorCode.none
        broker.kill()
        broker.start()
        with Requests(broker.bootstrap) as ask:
            shares = ShareStates(ask, "g", topic_id).ready()
            assert shares.write(3, leader_epoch=1).error_code is ErrorCode.fenced_leader_epoch
            read = shares.read(leader_epoch=2)
            assert (read.start_offset, read.state_epoch) == (17, 1)
            assert [(batch.first_offset, batch.last_offset) for batch in read.state_batches] == [(17, 22)]
