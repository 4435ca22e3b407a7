"""How long a listener waits, and when a connection from an address is closed."""

from __future__ import annotations

import pytest

from broker.quotas.connection_rates import ConnectionRates


def test_without_limits_nothing_waits() -> None:
    rates = ConnectionRates()
    assert not any(rates.accepted("A", 0.0) or rates.accepted_from("A", "10.0.0.1", 0.0) for _ in range(1000))


def test_the_broker_and_the_listener_have_limits_of_their_own() -> None:
    rates = ConnectionRates()
    rates.configure(10, {"A": 1})
    assert [rates.accepted("B", 0.0) for _ in range(90)] == [0] * 90
    assert [rates.accepted("A", 0.0) for _ in range(10)] == [0] * 10
    assert rates.accepted("A", 0.0) == pytest.approx(1.0), "the longer wait counts: 1 / 1 s"
    assert rates.accepted("B", 0.0) == pytest.approx(0.2)


def test_no_wait_is_longer_than_a_sample() -> None:
    rates = ConnectionRates(window_s=2.0)
    rates.configure(1, {})
    assert max(rates.accepted("A", 0.0) for _ in range(1000)) == 2.0


def test_brokers_reach_each_other_whatever_clients_do() -> None:
    rates = ConnectionRates(protected="INTERNAL")
    rates.configure(1, {})
    for _ in range(100):
        rates.accepted("CLIENTS", 0.0)
    assert rates.accepted("INTERNAL", 0.0) == 0


def test_an_address_has_its_own_limit_or_the_default() -> None:
    rates = ConnectionRates()
    rates.update_ips({"10.0.0.1": 2}, default=1)
    for ip, allowed in (("10.0.0.1", 20), ("10.0.0.2", 10), ("10.0.0.3", 10)):
        assert [rates.accepted_from("A", ip, 0.0) for _ in range(allowed)] == [0] * allowed
        assert rates.accepted_from("A", ip, 0.0) > 0
    rates.update_ips({})
    assert rates.accepted_from("A", "10.0.0.1", 0.0) == 0


def test_a_connection_that_is_not_served_counts_for_nobody() -> None:
    rates = ConnectionRates()
    rates.configure(10, {"A": 10})
    rates.update_ips({"10.0.0.1": 1})
    for _ in range(1000):
        assert rates.accepted("A", 0.0) == 0
        rates.accepted_from("A", "10.0.0.1", 0.0)
    assert rates.accepted_from("A", "10.0.0.1", 11.0) == 0, "nor for its address, which may try again"
