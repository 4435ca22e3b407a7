"""What clients with quotas are charged, and what is remembered of whom."""

from __future__ import annotations

import pytest

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
    assert made.produced("u", "a", 2000, 0.0) == 10_000
    assert made.produced("u", "b", 1000, 0.0) == 0


def test_a_users_clients_share_the_users_quota() -> None:
    made = quotas(QuotaEntity("u"), producer_byte_rate=100)
    assert made.produced("u", "a", 1000, 0.0) == 0
    assert made.produced("u", "b", 100, 0.0) == 1000
    assert made.produced("v", "a", 10**9, 0.0) == 0


def test_a_fetch_that_is_taken_back_costs_nothing() -> None:
    made = quotas(QuotaEntity("u"), consumer_byte_rate=100)
    assert made.fetched("u", "a", 900, 0.0) == (0, True)
    assert made.fetched("u", "a", 200, 0.0) == (1000, False)
    made.unfetched("u", "a", 200, 0.0)
    assert made.fetched("u", "a", 100, 1.0) == (0, False)
    assert made.most_to_fetch("u", "a") == 1000
    assert made.most_to_fetch("v", "a") is None


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
    assert made.produced("u", "a", 1000, 0.0) == 0
    made.update({QuotaEntity("u"): {"producer_byte_rate": 50.0}})
    assert made.produced("u", "a", 0, 0.0) == 10_000
    made.update({})
    assert not made.enabled
    assert made.tracked() == dict.fromkeys(QuotaType, 0)


def test_clients_without_a_quota_leave_no_trace() -> None:
    made = quotas(QuotaEntity("u"), producer_byte_rate=1, consumer_byte_rate=1, request_percentage=1)
    for number in range(100):
        made.produced("v", f"c{number}", 1000, 0.0)
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
