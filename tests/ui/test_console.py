"""What the console makes of answers that say less than they seem to."""

from __future__ import annotations

import pytest

from broker.client.admin import Admin
from broker.client.admin_types import TransactionDescription, TransactionListing
from broker.client.client_settings import ClientSettings
from broker.client.cluster_metadata import Node
from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.console import Console
from pykafka_ui.records.values import Decoder
from pykafka_ui.seen import sampler
from pykafka_ui.seen.snapshot import Partition, Topic

NODE = Node(1, "a", 9092)


def made() -> Console:
    return Console(ClientSettings.of({"bootstrap.servers": "127.0.0.1:1"}), Decoder())


def test_a_transaction_that_has_ended_since_it_was_listed_is_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    states = {"quick": ("CompleteCommit", -1), "slow": ("Ongoing", 1_000), "ending": ("PrepareAbort", 500)}
    listed = [TransactionListing(name, NODE, 1, "Ongoing") for name in states]

    def described(_: Admin, name: str) -> TransactionDescription:
        return TransactionDescription(name, NODE, states[name][0], 1, 0, 60_000, states[name][1], ())

    monkeypatch.setattr(Admin, "list_transactions", lambda *_, **__: listed)
    monkeypatch.setattr(Admin, "describe_transaction", described)
    found = made().open_transactions()
    assert [one.about.transactional_id for one in found] == ["ending", "slow"]


def test_a_topic_whose_newest_record_is_not_on_all_replicas_yet_is_not_called_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A leader tells the time of no record that is not: it answers as for an empty partition."""
    told = {TopicPartition("busy", 0): -1, TopicPartition("empty", 0): -1, TopicPartition("quiet", 0): 1_000}
    monkeypatch.setattr(sampler, "known_newest", lambda _, partitions: {tp: told[tp] for tp in partitions})
    ends = {"busy": 5, "empty": 0, "quiet": 5}
    topics = [Topic(name, False, (Partition(0, 1, (1,), (1,), 0, end),)) for name, end in ends.items()]
    assert made().newest_ms(topics) == {"empty": -1, "quiet": 1_000}
