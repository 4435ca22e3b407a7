"""What every offset store must do. A test class per store inherits it and gives the fixture `store`."""

from __future__ import annotations

import pytest

from broker.protocol.topic_partition import TopicPartition
from spark_connector.offset_store.base import OffsetConflict, OffsetStore

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class OffsetStoreContract:
    """Tests of the reading and writing side, without `expected`."""

    keeps_ids = True

    def test_a_group_without_commits_reads_empty(self, store: OffsetStore, group: str) -> None:
        assert store.read(group) == {}

    def test_what_is_committed_is_read_back(self, store: OffsetStore, group: str) -> None:
        store.commit(group, {A0: 10, A1: 0, B0: 2**40})
        assert store.read(group) == {A0: 10, A1: 0, B0: 2**40}

    def test_a_commit_leaves_other_partitions_as_they_are(self, store: OffsetStore, group: str) -> None:
        store.commit(group, {A0: 1, A1: 1})
        store.commit(group, {A1: 2, B0: 3})
        assert store.read(group) == {A0: 1, A1: 2, B0: 3}

    def test_without_expectation_an_offset_may_go_back(self, store: OffsetStore, group: str) -> None:
        store.commit(group, {A0: 10})
        store.commit(group, {A0: 5})
        assert store.read(group) == {A0: 5}

    def test_ids_of_topics_are_those_of_the_last_commit(self, store: OffsetStore, group: str) -> None:
        store.commit(group, {A0: 1, A1: 1, B0: 1}, topic_ids={"a": "one", "b": "two"})
        store.commit(group, {A1: 2}, topic_ids={"a": "three", "b": "two", "c": "none"})
        assert store.topic_ids(group) == ({"a": "three", "b": "two"} if self.keeps_ids else {})
        store.commit(group, {B0: 2})
        assert store.topic_ids(group) == ({"a": "three"} if self.keeps_ids else {})

    def test_groups_do_not_see_each_other(self, store: OffsetStore, group: str) -> None:
        store.commit(group, {A0: 1})
        assert store.read(f"{group}-other") == {}


class ComparingStoreContract(OffsetStoreContract):
    """Stores that can compare and set in one act: `expected`."""

    def test_a_commit_that_expects_what_is_stored_goes_through(self, store: OffsetStore, group: str) -> None:
        store.commit(group, {A0: 1}, expected={})
        store.commit(group, {A0: 2, A1: 1}, expected={A0: 1})
        assert store.read(group) == {A0: 2, A1: 1}

    @pytest.mark.parametrize(
        ("offsets", "expected"),
        [
            pytest.param({A0: 9}, {A0: 2}, id="another offset is stored"),
            pytest.param({A0: 9}, {}, id="stored though expected absent"),
            pytest.param({A0: 9, B0: 9}, {A0: 1, B0: 1}, id="absent though expected"),
            pytest.param({B0: 9}, {A0: 2}, id="a partition that is not set has moved"),
        ],
    )
    def test_any_other_expectation_conflicts_and_changes_nothing(
        self,
        store: OffsetStore,
        group: str,
        offsets: dict[TopicPartition, int],
        expected: dict[TopicPartition, int],
    ) -> None:
        store.commit(group, {A0: 1, A1: 1})
        with pytest.raises(OffsetConflict, match=group):
            store.commit(group, offsets, expected=expected)
        assert store.read(group) == {A0: 1, A1: 1}
