"""What is settled on the driver before any task runs: whether there are transactions, and how long they may last."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest

from broker.client.admin import Admin
from broker.client.broker_connection import BrokerConnection
from broker.client.cluster_metadata import UnknownTopic
from broker.errors import BrokerError, ConfigError, ErrorCode, UnsupportedVersion
from broker.protocol.api_keys import ApiKey
from spark_connector.options.write_options import parse_write_options
from spark_connector.write.commit_protocol import commit_batch
from spark_connector.write.write_plan import plan_write
from tests.spark_connector.write.conftest import Query


def no_transactions(connection: BrokerConnection, api: ApiKey, *, at_most: int | None = None) -> int:
    if api is ApiKey.END_TXN:
        raise UnsupportedVersion("the broker does not serve END_TXN")
    return _version(connection, api, at_most=at_most)


_version = BrokerConnection.version


def test_transactions_last_as_long_as_the_brokers_allow_or_the_user_says(query: Query) -> None:
    assert query.plan().options.exactly_once
    assert query.plan().timeout_ms == 900_000
    assert query.plan(kafka_transaction_timeout_ms="5000").timeout_ms == 5000
    with pytest.raises(ConfigError, match="=900001 is above the brokers' transaction.max.timeout.ms=900000"):
        query.plan(kafka_transaction_timeout_ms="900001")


def test_brokers_that_do_not_tell_their_limit_are_taken_to_have_kafkas(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise BrokerError(ErrorCode.cluster_authorization_failed)

    monkeypatch.setattr(Admin, "describe_configs", refuse)
    assert query.plan().timeout_ms == 900_000
    assert query.plan(kafka_transaction_timeout_ms="900001").timeout_ms == 900_001


def test_without_transactions_a_stream_is_refused_and_never_silently_at_least_once(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BrokerConnection, "version", no_transactions)
    with pytest.raises(
        ConfigError, match="exactly-once writes: .* lack EndTxn.*Set option 'delivery' to at-least-once"
    ):
        query.plan()
    weaker = {"delivery": "at-least-once"}
    (report,) = query.tasks(0, [["a"]], **weaker)
    assert (report.handle, report.exactly_once) == (None, False)
    commit_batch(query.plan(**weaker), 0, [report])
    assert query.visible() == ["a"]


def test_a_topic_that_is_named_is_looked_for_and_nothing_else_is_asked_for_at_least_once(query: Query) -> None:
    with pytest.raises(UnknownTopic, match="there is no topic 'nowhere'"):
        query.plan(topic="nowhere")
    unreachable = parse_write_options({"kafka.bootstrap.servers": "127.0.0.1:1"}, stream=False)
    assert not plan_write(unreachable).options.exactly_once


def test_transactions_that_were_open_for_half_their_time_are_warned_of(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    (report,) = query.tasks(0, [["a"]])
    with caplog.at_level(logging.WARNING, "pykafka.spark"):
        commit_batch(query.plan(), 0, [report])
        assert "transactions" not in caplog.text
        (report,) = query.tasks(1, [["b"]])
        commit_batch(query.plan(), 1, [dataclasses.replace(report, opened_ms=report.opened_ms - 500_000)])
    assert "of batch 1 have been open for 500 s" in caplog.text
    assert "brokers abort them after 900 s (kafka.transaction.timeout.ms)" in caplog.text
