"""The ZooKeeper store against a real server: the contract, Kafka's paths, one transaction."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from broker.errors import ConfigError
from spark_connector.offset_store.base import OffsetConflict, OffsetStoreError
from spark_connector.offset_store.zookeeper import ZooKeeperOffsetStore
from tests.support.offset_store_contract import A0, A1, B0, ComparingStoreContract


@pytest.fixture
def store(zookeeper: str) -> Iterator[ZooKeeperOffsetStore]:
    store = ZooKeeperOffsetStore(f"{zookeeper}/offset-store-tests")
    yield store
    store.close()


@pytest.fixture
def client(zookeeper: str) -> Iterator[KazooClient]:
    client = KazooClient(hosts=zookeeper)
    client.start()
    client.ensure_path("/offset-store-tests")
    client.chroot = "/offset-store-tests"
    yield client
    client.stop()
    client.close()


class TestContract(ComparingStoreContract):
    pass


def test_offsets_are_text_at_the_paths_of_kafkas_old_consumers(
    store: ZooKeeperOffsetStore, client: KazooClient, group: str
) -> None:
    store.commit(group, {A1: 42})
    assert client.get(f"/consumers/{group}/offsets/a/1")[0] == b"42"


def test_offsets_written_by_others_are_read(store: ZooKeeperOffsetStore, client: KazooClient, group: str) -> None:
    client.create(f"/consumers/{group}/offsets/a/0", b"7", makepath=True)
    client.create(f"/consumers/{group}/owners/a", b"", makepath=True)
    assert store.read(group) == {A0: 7}
    store.commit(group, {A0: 8}, expected={A0: 7})
    assert store.read(group) == {A0: 8}


def test_an_offset_that_others_wrote_later_has_no_topic_id(
    store: ZooKeeperOffsetStore, client: KazooClient, group: str
) -> None:
    store.commit(group, {A0: 7, B0: 7}, topic_ids={"a": "one", "b": "two"})
    client.set(f"/consumers/{group}/offsets/a/0", b"3")
    assert store.topic_ids(group) == {"b": "two"}


def test_a_change_between_reading_and_committing_conflicts(
    store: ZooKeeperOffsetStore, client: KazooClient, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.commit(group, {A0: 1, A1: 1, B0: 1})
    make_parents = store._make_parents

    def interfere(*arguments: object) -> None:  # runs after the store has read, before its transaction
        client.set(f"/consumers/{group}/offsets/b/0", b"5")
        make_parents(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "_make_parents", interfere)
    with pytest.raises(OffsetConflict, match=group):
        store.commit(group, {A0: 2, A1: 2}, expected={A0: 1, A1: 1, B0: 1})
    assert store.read(group) == {A0: 1, A1: 1, B0: 5}


def test_nodes_are_created_in_the_same_transaction_or_not_at_all(store: ZooKeeperOffsetStore, group: str) -> None:
    node = f"/consumers/{group}/loads/1"
    store.commit(group, {A0: 1}, expected={}, create={node: b"first"})
    assert store.get(node) == b"first"
    with pytest.raises(OffsetConflict):
        store.commit(group, {A0: 2}, expected={A0: 1}, create={node: b"second"})
    assert store.read(group) == {A0: 1}
    assert store.get(node) == b"first"


def test_a_thousand_partitions_go_into_one_commit(store: ZooKeeperOffsetStore, group: str) -> None:
    many = {A0._replace(partition=number): number for number in range(1000)}
    store.commit(group, many, expected={})
    assert store.read(group) == many


def test_a_node_that_holds_no_number_is_named(store: ZooKeeperOffsetStore, client: KazooClient, group: str) -> None:
    client.create(f"/consumers/{group}/offsets/a/0", b"seven", makepath=True)
    with pytest.raises(OffsetStoreError, match=f"/consumers/{group}/offsets/a/0 holds b'seven'"):
        store.read(group)


def test_an_address_that_is_none_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="not a ZooKeeper address"):
        ZooKeeperOffsetStore("localhost:notaport")


def test_no_answer_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_connector.offset_store.zookeeper._CONNECT_TIMEOUT", 0.3)
    with pytest.raises(OffsetStoreError, match=r"no ZooKeeper answers at 127\.0\.0\.1:1 "):
        ZooKeeperOffsetStore("127.0.0.1:1")
