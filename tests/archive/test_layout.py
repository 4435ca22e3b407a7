"""The names in an archive: each is parsed as what it is, and as nothing else."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from broker.archive.layout import (
    PartitionPlace,
    cluster_backups,
    is_object_name,
    new_object_name,
    number_of,
    numbered,
    parse_topic_id,
    topic_id_text,
)

PLACE = PartitionPlace("cluster-1", uuid.UUID(int=1), 4)


@given(st.uuids(), st.integers(0, 10**20 - 1), st.integers(0, (1 << 31) - 1))
def test_names_are_parsed_as_what_they_are(topic_id: uuid.UUID, number: int, epoch: int) -> None:
    assert parse_topic_id(topic_id_text(topic_id)) == topic_id
    assert number_of(numbered(number)) == number
    name = new_object_name(number, epoch)
    assert is_object_name(name)
    assert name != new_object_name(number, epoch)


@given(st.text(max_size=30))
def test_other_names_are_not(name: str) -> None:
    assert number_of(name) is None
    assert not is_object_name(name)
    assert parse_topic_id("") is parse_topic_id("cluster") is None


def test_the_paths_of_a_partition() -> None:
    assert PLACE.entry(7) == "cluster-1/AAAAAAAAAAAAAAAAAAAAAQ/4/manifest/00000000000000000007.json"
    assert PLACE.segment("x") == "cluster-1/AAAAAAAAAAAAAAAAAAAAAQ/4/x.log"
    assert PLACE.aux("x") == "cluster-1/AAAAAAAAAAAAAAAAAAAAAQ/4/x.aux"
    assert cluster_backups("cluster-1") == "cluster-1/cluster"
