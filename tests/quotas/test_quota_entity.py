"""Which quota is a client's: Kafka's order of precedence, level by level."""

from __future__ import annotations

import itertools

import pytest

from broker.quotas.quota_entity import CONSUMER_BYTE_RATE, DEFAULT, PRODUCER_BYTE_RATE, QUOTA_KEYS, QuotaEntity
from broker.quotas.quota_entity import QuotaLimits as Limits

ORDER = [
    (QuotaEntity("u", "c"), ("u", "c")),
    (QuotaEntity("u", DEFAULT), ("u", "c")),
    (QuotaEntity("u"), ("u", "")),
    (QuotaEntity(DEFAULT, "c"), ("u", "c")),
    (QuotaEntity(DEFAULT, DEFAULT), ("u", "c")),
    (QuotaEntity(DEFAULT), ("u", "")),
    (QuotaEntity(None, "c"), ("", "c")),
    (QuotaEntity(None, DEFAULT), ("", "c")),
]
"""The entity, and whose rate its limit is for."""


@pytest.mark.parametrize("chosen", list(itertools.product([False, True], repeat=len(ORDER))))
def test_the_most_specific_entity_counts(chosen: tuple[bool, ...]) -> None:
    numbered = [(number, *row) for number, (row, one) in enumerate(zip(ORDER, chosen, strict=True), 1) if one]
    limits = Limits({entity: {PRODUCER_BYTE_RATE: float(number)} for number, entity, _ in numbered}, PRODUCER_BYTE_RATE)
    expected = (numbered[0][2], float(numbered[0][0])) if numbered else None
    assert limits.find("u", "c") == expected


def test_a_quota_of_another_key_hides_none() -> None:
    quotas = {QuotaEntity("u", "c"): {CONSUMER_BYTE_RATE: 1.0}, QuotaEntity("u"): {PRODUCER_BYTE_RATE: 2.0}}
    assert Limits(quotas, PRODUCER_BYTE_RATE).find("u", "c") == (("u", ""), 2.0)


def test_a_client_without_an_id_has_the_quotas_of_its_user_only() -> None:
    quotas = {entity: {PRODUCER_BYTE_RATE: float(number)} for number, (entity, _) in enumerate(ORDER, 1)}
    assert Limits(quotas, PRODUCER_BYTE_RATE).find("u", "") == (("u", ""), 3.0)
    assert Limits({QuotaEntity(None, DEFAULT): {PRODUCER_BYTE_RATE: 1.0}}, PRODUCER_BYTE_RATE).find("u", "") is None


def test_quotas_of_others_do_not_count() -> None:
    quotas = {QuotaEntity("v", "c"): {PRODUCER_BYTE_RATE: 1.0}, QuotaEntity(None, "d"): {PRODUCER_BYTE_RATE: 1.0}}
    assert Limits(quotas, PRODUCER_BYTE_RATE).find("u", "c") is None


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("producer_byte_rate", 1048576.0, "1048576"),
        ("producer_byte_rate", 1048576.0000001, "1048576"),
        ("producer_byte_rate", 0.5, None),
        ("producer_byte_rate", 1e19, None),
        ("connection_creation_rate", 2.0**31, None),
        ("request_percentage", 12.5, "12.5"),
        ("request_percentage", 200.0, "200.0"),
    ],
)
def test_values_are_stored_as_kafka_stores_them(key: str, value: float, text: str | None) -> None:
    assert QUOTA_KEYS[key].format(value) == text
