"""The partitions of a column of keys against the rule for a single key."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ConfigError
from broker.records.columns import partitions_of_keys
from broker.records.key_hash import partition_of_key

pytestmark = pytest.mark.usefixtures("implementation")


def expected(keys: list[bytes | None], partitions: int) -> list[int]:
    return [-1 if key is None else partition_of_key(key, partitions) for key in keys]


@given(st.lists(st.none() | st.binary(max_size=40)), st.integers(1, 2**31 - 1), st.data())
def test_a_column_goes_where_its_keys_go_one_by_one(
    keys: list[bytes | None], partitions: int, data: st.DataObject
) -> None:
    begin = data.draw(st.integers(0, len(keys)))
    end = data.draw(st.integers(begin, len(keys)))
    column = pa.array(keys, pa.binary()).slice(begin, end - begin)
    found = partitions_of_keys(column, partitions)
    assert found.dtype == "int32"
    assert found.tolist() == expected(keys[begin:end], partitions)


def test_keys_of_many_lengths() -> None:
    keys = [bytes(range(length)) for length in (0, 255, 3, 8, 1, 200, 2, 4, 7)] + [None]
    assert partitions_of_keys(pa.array(keys, pa.binary()), 1000).tolist() == expected(keys, 1000)


def test_text_is_hashed_as_utf8() -> None:
    assert partitions_of_keys(pa.array(["é", "key"]), 50).tolist() == expected(["é".encode(), b"key"], 50)


@pytest.mark.parametrize("keys", [pa.nulls(3, pa.binary()), pa.array([], pa.binary())])
def test_a_column_without_keys(keys: pa.Array) -> None:
    assert partitions_of_keys(keys, 4).tolist() == [-1] * len(keys)


def test_no_partitions_and_other_types_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        partitions_of_keys(pa.array([b"k"]), 0)
    with pytest.raises(ConfigError, match="cast them to binary"):
        partitions_of_keys(pa.array([1]), 3)
