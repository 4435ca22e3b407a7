"""ShareFetch and ShareAcknowledge on the wire: sessions, acquired records, acknowledgements, waits, isolation."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.share.share_sessions import MAX_PARTITIONS
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests, versions
from tests.support.raw_transactions import RawProducer, stable_end
from tests.support.share_members import (
    ACCEPT,
    FINAL,
    REJECT,
    RELEASE,
    RENEW,
    ShareMember,
    acquired,
    configure,
    offsets_sent,
)
from tests.support.waiting import eventually

OK = ErrorCode.none


@pytest.fixture
def group(ask: Requests, topic: str) -> str:
    """A share group that begins at the first record of `topic`, which has two partitions."""
    ask.create(topic, 2)
    configure(ask, f"share-{topic}", share_auto_offset_reset="earliest")
    return f"share-{topic}"


@pytest.fixture
def member(ask: Requests, topic: str, group: str) -> ShareMember:
    return ShareMember(ask, group, topic).join()


def put(ask: Requests, topic: str, count: int = 5) -> None:
    ask.put(topic, *(b"%d" % number for number in range(count)))


class TestRecords:
    def test_whole_batches_are_acquired_and_sent(self, ask: Requests, topic: str, member: ShareMember) -> None:
        put(ask, topic, 5)
        put(ask, topic, 5)
        answer = member.fetch(max_records=3)
        assert acquired(answer) == [(0, 4, 1)]
        assert offsets_sent(answer) == [0, 1, 2, 3, 4]
        assert answer.acquisition_lock_timeout.total_seconds() == 30
        assert member.take() == [(5, 9, 1)]
        assert member.take() == []

    def test_a_record_limit_cuts_batches_by_their_offsets(self, ask: Requests, topic: str, member: ShareMember) -> None:
        put(ask, topic, 5)
        answer = member.fetch(max_records=3, share_acquire_mode=1)
        assert acquired(answer) == [(0, 2, 1)]
        assert offsets_sent(answer) == [0, 1, 2, 3, 4], "the batch is sent whole"
        assert member.take(max_records=3, share_acquire_mode=1) == [(3, 4, 1)]

    def test_two_members_share_one_partition(self, ask: Requests, topic: str, group: str, member: ShareMember) -> None:
        other = ShareMember(ask, group, topic).join()
        for _ in range(4):
            put(ask, topic, 5)
        got = [one.take(max_records=5)[0][:2] for one in (member, other, member, other)]
        assert got == [(0, 4), (5, 9), (10, 14), (15, 19)]

    @pytest.mark.parametrize("version", versions(ApiKey.SHARE_FETCH))
    def test_acknowledgements_travel_with_a_fetch(
        self, ask: Requests, topic: str, member: ShareMember, version: int
    ) -> None:
        put(ask, topic, 5)
        assert member.take(version=version) == [(0, 4, 1)]
        types = [ACCEPT, RELEASE, REJECT, RELEASE, ACCEPT]
        answer = member.fetch({0: [(0, 4, types)]}, version=version)
        assert answer.responses[0].partitions[0].acknowledge_error_code == OK
        assert acquired(answer) == [(1, 1, 2), (3, 3, 2)]

    def test_a_record_is_delivered_five_times_and_no_more(self, ask: Requests, topic: str, member: ShareMember) -> None:
        put(ask, topic, 1)
        for count in range(1, 6):
            assert member.take() == [(0, 0, count)]
            assert member.accept(0, 0, RELEASE) is OK
        assert member.take() == []
        put(ask, topic, 1)
        assert member.take() == [(1, 1, 1)]

    def test_what_others_hold_is_not_acknowledged(
        self, ask: Requests, topic: str, group: str, member: ShareMember
    ) -> None:
        put(ask, topic, 2)
        other = ShareMember(ask, group, topic).join()
        assert (member.take(), other.take()) == ([(0, 1, 1)], [])
        assert other.accept(0, 1) is ErrorCode.invalid_record_state
        assert member.accept(0, 1) is OK
        assert member.accept(0, 1) in (OK, ErrorCode.invalid_record_state)

    def test_a_renewed_lock_is_answered_without_records(self, ask: Requests, topic: str, member: ShareMember) -> None:
        put(ask, topic, 2)
        put(ask, topic, 2)
        assert member.take(max_records=2) == [(0, 1, 1)]
        zeros: dict[str, Any] = {"max_wait": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
        answer = member.fetch({0: [(0, 1, [RENEW])]}, is_renew_ack=True, **zeros)
        assert (answer.error_code, acquired(answer)) == (OK, [])
        assert answer.responses[0].partitions[0].acknowledge_error_code == OK
        refused = member.fetch({0: [(0, 1, [RENEW])]}, is_renew_ack=True, epoch=member.session_epoch)
        assert refused.error_code is ErrorCode.invalid_request
        assert member.acknowledge({0: [(0, 1, [RENEW])]}).responses[0].partitions[0].error_code == 42
        assert member.acknowledge({0: [(0, 1, [RENEW])]}, is_renew_ack=True).responses[0].partitions[0].error_code == OK

    def test_the_partitions_take_turns(self, ask: Requests, topic: str, group: str) -> None:
        member = ShareMember(ask, group, topic).join()
        for partition in (0, 1):
            for _ in range(3):
                ask.put(topic, b"one", partition=partition)
        first = [
            next(p.partition_index for t in answer.responses for p in t.partitions if p.acquired_records)
            for answer in (member.fetch(partitions=(0, 1), max_records=1) for _ in range(4))
        ]
        assert first == [0, 1, 0, 1]

    def test_deleted_records_are_skipped(self, ask: Requests, topic: str, member: ShareMember) -> None:
        put(ask, topic, 3)
        put(ask, topic, 3)
        assert member.take(max_records=3) == [(0, 2, 1)]
        deleted = {"name": topic, "partitions": [{"partition_index": 0, "offset": 4}]}
        ask.ask(ApiKey.DELETE_RECORDS, {"topics": [deleted], "timeout": 10_000})
        assert member.take() == [(4, 5, 1)]
        assert member.accept(4, 5) is OK


class TestWaits:
    def test_a_fetch_waits_for_records(self, ask: Requests, broker: BrokerProcess, topic: str, group: str) -> None:
        with Requests(broker.bootstrap) as other:
            member = ShareMember(other, group, topic).join()
            assert member.take() == []
            got: list[Any] = []
            waiting = threading.Thread(target=lambda: got.append(member.take(max_wait=30_000)))
            waiting.start()
            put(ask, topic, 1)
            waiting.join(20)
        assert got == [[(0, 0, 1)]]

    def test_a_fetch_gets_what_a_member_gives_back_by_leaving(
        self, ask: Requests, broker: BrokerProcess, topic: str, group: str, member: ShareMember
    ) -> None:
        put(ask, topic, 2)
        with Requests(broker.bootstrap) as connection:
            leaving = ShareMember(connection, group, topic).join()
            assert leaving.take() == [(0, 1, 1)]
            assert member.take() == []
        assert member.take(max_wait=20_000) == [(0, 1, 2)], "the connection is closed"

    def test_without_records_it_is_answered_when_its_time_is_over(self, member: ShareMember) -> None:
        began = time.monotonic()
        assert member.take(max_wait=200) == []
        assert time.monotonic() - began >= 0.2


class TestSessions:
    def test_epochs(self, member: ShareMember) -> None:
        assert member.fetch(epoch=1).error_code is ErrorCode.share_session_not_found
        assert member.fetch(epoch=FINAL).error_code is ErrorCode.share_session_not_found
        assert member.fetch(epoch=0).error_code is OK
        assert member.fetch(epoch=3).error_code is ErrorCode.invalid_share_session_epoch
        assert member.fetch(epoch=1).error_code is OK
        assert member.acknowledge({}, epoch=2).error_code is OK
        assert member.acknowledge({}, epoch=0).error_code is ErrorCode.invalid_share_session_epoch
        assert member.acknowledge({}, epoch=7).error_code is ErrorCode.invalid_share_session_epoch
        assert member.fetch(epoch=3).error_code is OK
        assert member.fetch(epoch=0).error_code is OK, "begins again"
        assert member.acknowledge({}, epoch=FINAL).error_code is OK
        assert member.fetch(epoch=1).error_code is ErrorCode.share_session_not_found

    def test_the_first_fetch_acknowledges_nothing(self, member: ShareMember) -> None:
        assert member.fetch({0: [(0, 0, [ACCEPT])]}, epoch=0).error_code is ErrorCode.invalid_request

    def test_the_final_fetch_acknowledges_and_releases(
        self, ask: Requests, topic: str, group: str, member: ShareMember
    ) -> None:
        put(ask, topic, 4)
        assert member.take() == [(0, 3, 1)]
        answer = member.fetch({0: [(0, 1, [ACCEPT])]}, epoch=FINAL)
        assert answer.responses[0].partitions[0].acknowledge_error_code == OK
        other = ShareMember(ask, group, topic).join()
        assert other.take(max_wait=20_000) == [(2, 3, 2)]

    def test_the_session_remembers_its_partitions(self, ask: Requests, topic: str, member: ShareMember) -> None:
        assert member.take() == []
        put(ask, topic, 1)
        assert member.take(partitions=()) == [(0, 0, 1)]
        put(ask, topic, 1)
        forgotten = [{"topic_id": member.topic_id, "partitions": [0]}]
        assert member.take(partitions=(), forgotten_topics_data=forgotten) == []

    def test_a_session_has_a_limit_of_partitions(self, ask: Requests, topic: str, member: ShareMember) -> None:
        refused = member.fetch(partitions=range(MAX_PARTITIONS + 1))
        assert refused.error_code is ErrorCode.share_session_limit_reached
        assert f"at most {MAX_PARTITIONS} partitions" in refused.error_message
        put(ask, topic, 1)
        assert member.take() == [(0, 0, 1)], "the session is there"


class TestRefusals:
    def test_of_a_whole_request(self, ask: Requests, topic: str, group: str) -> None:
        for member_id in ("", "m" * 37):
            refused = ShareMember(ask, group, topic)
            refused.member_id = member_id
            assert refused.fetch().error_code is ErrorCode.invalid_request

    def test_of_a_partition(self, member: ShareMember) -> None:
        answer = member.fetch(partitions=(0, 9))
        codes = {p.partition_index: p.error_code for t in answer.responses for p in t.partitions}
        assert codes == {0: OK, 9: ErrorCode.unknown_topic_or_partition}
        member.topic_id = uuid.uuid4()
        answer = member.fetch()
        errors = {ErrorCode(p.error_code) for t in answer.responses for p in t.partitions}
        assert errors == {ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition}

    @pytest.mark.parametrize(
        "batches",
        [[(3, 1, [1])], [(0, 3, [])], [(0, 3, [1, 1])], [(0, 0, [7])], [(0, 0, [-1])], [(5, 9, [1]), (0, 3, [1])]],
    )
    def test_of_acknowledgements_that_make_no_sense(
        self, ask: Requests, topic: str, member: ShareMember, batches: list[tuple[int, int, list[int]]]
    ) -> None:
        put(ask, topic, 10)
        assert member.take() == [(0, 9, 1)]
        (found,) = member.acknowledge({0: batches}).responses[0].partitions
        assert ErrorCode(found.error_code) is ErrorCode.invalid_request
        assert member.accept(0, 9) is OK


class TestTransactions:
    def test_a_group_of_committed_reads_skips_what_was_aborted(
        self, ask: Requests, broker: BrokerProcess, topic: str, group: str
    ) -> None:
        configure(ask, group, share_isolation_level="read_committed")
        member = ShareMember(ask, group, topic).join()
        producer = RawProducer(ask, topic).begin()
        assert producer.add((topic, 0)) == [OK]
        assert producer.send(topic, b"aborted") is OK
        assert member.take() == [], "the transaction is open"
        producer.end(commit=False)
        put(ask, topic, 1)
        assert member.take(max_wait=20_000) == [(2, 2, 1)]
        assert member.accept(2, 2) is OK
        assert member.take() == []

    def test_what_the_same_producer_commits_later_is_no_part_of_its_aborted_transaction(
        self, ask: Requests, topic: str, group: str
    ) -> None:
        configure(ask, group, share_isolation_level="read_committed")
        member = ShareMember(ask, group, topic).join()
        assert member.take() == []
        producer = RawProducer(ask, topic).begin()
        for commit in (False, True, False, True):
            assert producer.add((topic, 0)) == [OK]
            assert producer.send(topic, b"one") is OK
            producer.end(commit=commit)
        eventually(lambda: stable_end(ask, topic) == 8)
        assert member.take() == [(2, 2, 1), (6, 6, 1)]

    def test_others_get_everything_but_markers(self, ask: Requests, topic: str, member: ShareMember) -> None:
        producer = RawProducer(ask, topic).begin()
        assert producer.add((topic, 0)) == [OK]
        assert producer.send(topic, b"aborted") is OK
        producer.end(commit=False)
        put(ask, topic, 1)
        assert [one[:2] for one in member.take(max_wait=20_000)] == [(0, 0), (2, 2)]
