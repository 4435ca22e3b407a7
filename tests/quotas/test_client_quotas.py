"""What clients with quotas are charged, and what is remembered of whom."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BrokerError, ErrorCode
from broker.quotas.client_quotas import ClientQuotas, QuotaType
from broker.quotas.quota_entity import DEFAULT, QuotaEntity
from broker.quotas.recently_used import EXPIRES_S, MOST_CLIENTS, RecentlyUsed


def quotas(entity: QuotaEntity, **limits: float) -> ClientQuotas:
    made = ClientQuotas()
    made.update({entity: limits})
    return made


def test_a_default_is_a_limit_for_each_client_alone() -> None:
    made = quotas(QuotaEntity(None, DEFAULT), producer_byte_rate=100)
    assert made.produced("u", "a", 1010, 0.0) == 10_000
    assert made.produced("u", "b", 10, 0.0) == 0


def test_a_users_clients_share_the_users_quota() -> None:
    made = quotas(QuotaEntity("u"), producer_byte_rate=100)
    assert made.produced("u", "a", 10, 0.0) == 0
    assert made.produced("u", "b", 100, 0.0) == 1000
    assert made.produced("v", "a", 10**9, 0.0) == 0


def test_a_fetch_is_withheld_and_not_counted_while_an_earlier_one_is_not_paid_for() -> None:
    made = quotas(QuotaEntity("u"), consumer_byte_rate=100)
    assert made.unpaid_ms("u", "a", 0.0) == 0
    assert made.fetched("u", "a", 110, 0.0) == 1000
    assert made.unpaid_ms("u", "b", 0.5) == 500
    assert made.unpaid_ms("u", "b", 0.5) == 500
    assert made.unpaid_ms("u", "b", 1.0) == 0
    assert made.fetched("u", "b", 100, 1.0) == 1000
    assert made.most_to_fetch("u", "a") == 10
    assert made.most_to_fetch("v", "a") is None


IDLE = st.sampled_from([0.0, 0.0, 0.001, 0.3])
REQUESTS = st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 3), IDLE), min_size=1)
"""(bytes, which connection, how long it does nothing before)"""


@given(REQUESTS, st.booleans())
def test_no_span_of_time_has_more_than_its_share(requests: list[tuple[int, int, float]], fetches: bool) -> None:
    """The burst, and one request of each connection, which is answered before it is paid for."""
    limit, connections = 10_000, 4
    made = quotas(QuotaEntity("u"), producer_byte_rate=limit, consumer_byte_rate=limit)
    free_at, sent, now = [0.0] * connections, list[tuple[float, int]](), 0.0
    for size, connection, idle in requests:
        now = max(now, free_at[connection]) + idle
        if fetches:
            unpaid_ms = made.unpaid_ms("u", "a", now)
            throttle_ms = unpaid_ms or made.fetched("u", "a", size, now)
        else:
            throttle_ms, unpaid_ms = made.produced("u", "a", size, now), 0
        if not unpaid_ms:
            sent.append((now, size))
        free_at[connection] = now + throttle_ms / 1000
    for index, (begin, _) in enumerate(sent):
        total = 0
        for end, size in sent[index:]:
            most = limit * (end - begin + 0.1) + (1 if fetches else connections) * 5000
            total += size
            assert total <= most + limit * 0.001 * len(sent)


def test_who_always_has_more_to_send_uses_its_whole_share() -> None:
    made = quotas(QuotaEntity("u"), producer_byte_rate=10_000)
    now = sent = 0.0
    while now < 10:
        sent += 1000
        now += max(made.produced("u", "a", 1000, now) / 1000, 0.002)
    assert 0.99 < sent / (10_000 * now) < 1.03


def test_time_is_a_share_of_one_core_and_throttles_for_one_sample_at_most() -> None:
    made = quotas(QuotaEntity("u"), request_percentage=10)
    assert made.handled("u", "a", 1.0, 0.0) == 0, "one second in ten is 10 %"
    assert made.handled("u", "a", 0.05, 0.0) == 500
    assert made.handled("u", "a", 100.0, 0.0) == 1000
    assert not made.limits_time("v", "a")


def test_work_of_sending_counts_for_the_next_request() -> None:
    made = quotas(QuotaEntity("u"), request_percentage=10)
    made.sent("u", "a", 1.05, 0.0)
    assert made.handled("u", "a", 0.0, 0.0) == 500


def test_mutations_are_refused_while_the_bucket_is_overdrawn() -> None:
    made = quotas(QuotaEntity("u"), controller_mutation_rate=1)
    first = made.mutations("u", "a", 0.0, strict=True)
    first.record(20)
    assert first.throttle_ms(0.0) == 0, "the quota was not used up before"
    second = made.mutations("u", "a", 1.0, strict=True)
    with pytest.raises(BrokerError) as caught:
        second.record(1)
    assert caught.value.code is ErrorCode.throttling_quota_exceeded
    assert caught.value.retriable
    assert (second.throttle_ms(1.0), second.throttle_ms(3.0), second.throttle_ms(30.0)) == (8000, 6000, 0)
    made.mutations("u", "a", 9.0, strict=True).record(1)


def test_old_clients_are_throttled_and_not_refused() -> None:
    made = quotas(QuotaEntity("u"), controller_mutation_rate=1)
    mutations = made.mutations("u", "a", 0.0, strict=False)
    mutations.record(12)
    mutations.record(3)
    assert mutations.throttle_ms(0.0) == 4000


def test_quotas_that_change_keep_the_rates() -> None:
    made = quotas(QuotaEntity("u"), producer_byte_rate=1000)
    assert made.produced("u", "a", 300, 0.0) == 200
    made.update({QuotaEntity("u"): {"producer_byte_rate": 50.0}})
    assert made.produced("u", "a", 0, 0.0) == 4000
    made.update({})
    assert not made.enabled
    assert made.tracked() == dict.fromkeys(QuotaType, 0)


def test_clients_without_a_quota_leave_no_trace() -> None:
    made = quotas(QuotaEntity("u"), producer_byte_rate=1, consumer_byte_rate=1, request_percentage=1)
    for number in range(100):
        made.produced("v", f"c{number}", 1000, 0.0)
        made.unpaid_ms("v", f"c{number}", 0.0)
        made.fetched("v", f"c{number}", 1000, 0.0)
        made.handled("v", f"c{number}", 1000, 0.0)
        made.mutations("v", f"c{number}", 0.0, strict=True).record(1000)
    assert made.tracked() == dict.fromkeys(QuotaType, 0)


def test_names_that_clients_make_up_are_forgotten() -> None:
    made = quotas(QuotaEntity(None, DEFAULT), producer_byte_rate=1)
    for number in range(MOST_CLIENTS + 500):
        made.produced("u", f"c{number}", 1, 0.0)
    assert made.tracked()[QuotaType.PRODUCE] == MOST_CLIENTS
    made.expire(EXPIRES_S)
    assert made.tracked()[QuotaType.PRODUCE] == 0


def test_long_names_take_little_memory_and_stay_apart() -> None:
    made = quotas(QuotaEntity(None, DEFAULT), producer_byte_rate=100)
    tracemalloc.start()
    for number in range(300):
        assert made.produced("u", "c" * 32_000 + str(number), 110, 0.0) == 1000
    assert tracemalloc.get_traced_memory()[0] < 1_000_000
    tracemalloc.stop()
    assert made.produced("u", "c" * 32_000 + "0", 0, 0.5) == 500


def test_the_least_recently_used_gives_way() -> None:
    table: RecentlyUsed[str, list[int]] = RecentlyUsed(list, most=2)
    table.get("a", 0.0).append(1)
    table.get("b", 1.0).append(2)
    assert table.get("a", 2.0) == [1]
    table.get("c", 3.0)
    assert table.get("a", 4.0) == [1]
    assert table.get("b", 5.0) == []


def test_only_the_idle_expire() -> None:
    table: RecentlyUsed[str, list[int]] = RecentlyUsed(list, expires_s=10.0)
    table.get("a", 0.0).append(1)
    table.get("b", 5.0)
    table.get("a", 6.0)
    table.expire(15.5)
    assert len(table) == 1
    assert table.get("a", 15.5) == [1]
