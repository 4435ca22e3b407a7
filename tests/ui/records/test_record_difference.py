"""What differs between two records: fields of JSON by their paths, anything else by lines."""

from __future__ import annotations

import json
import time
from typing import Any

import jsonpath_rfc9535 as jsonpath
from hypothesis import given
from hypothesis import strategies as st

from pykafka_ui.records.record_difference import MOST_LINES, Difference, differences
from pykafka_ui.records.records_query import Row
from pykafka_ui.records.values import Decoder

DECODER = Decoder()
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def row(value: Any, key: bytes | None = b"k", headers: tuple[tuple[str, bytes | None], ...] = ()) -> Row:
    content = value if isinstance(value, bytes) or value is None else json.dumps([value]).encode()
    named = [(name, DECODER.decode(one)) for name, one in headers]
    return Row(0, 1, 2, DECODER.decode(key), DECODER.decode(content), named, "", None)


def changed(left: Row, right: Row) -> list[tuple[str, str | None, str | None]]:
    return [(one.name, one.left, one.right) for one in differences(left, right) if not one.is_equal]


def test_fields_of_json_are_compared_by_path_whatever_their_order() -> None:
    left, right = row({"a": 1, "b": {"c": [1, 2]}, "d": None}), row({"b": {"c": [1, 3], "x y": {}}, "a": 1})
    assert changed(left, right) == [
        ("$[0].b.c[1]", "2", "3"),
        ("$[0].d", "null", None),
        ('$[0].b["x y"]', None, "{}"),
    ]
    assert changed(left, left) == []


def test_what_looks_the_same_is_not_what_is_the_same() -> None:
    assert changed(row({"a": 1}), row({"a": "1"})) == [("$[0].a", "1", '"1"')]
    assert changed(row({"a": 1}), row({"a": True})) == [("$[0].a", "1", "true")]
    assert changed(row({"a": 1}), row({"a": 1.0})) == [("$[0].a", "1", "1.0")]
    assert changed(row(b"null"), row(None)) == [("value", "null", None)]
    assert changed(row(b"", key=None), row(b"", key=b"null")) == [("key", None, "null")]


def test_headers_of_one_name_are_compared_in_their_order() -> None:
    left = row(b"", headers=(("h", b"1"), ("h", b"2"), ("only", b"x")))
    right = row(b"", headers=(("h", b"1"), ("h", b"3")))
    assert changed(left, right) == [("header h (2)", "2", "3"), ("header only", "x", None)]


def test_text_and_bytes_are_compared_by_lines() -> None:
    left, right = row(b"one\ntwo\nthree"), row(b"one\n2\nthree\nfour")
    assert changed(left, right) == [("line 2", "two", "2"), ("line 4", None, "four")]
    assert changed(row(b"\xff\x00"), row(b"\xff\x01"))[0][0] == "line 1"


def test_hostile_texts_are_compared_in_a_moment() -> None:
    left, right = b"\n".join([b"a", b"b"] * 4_000), b"\n".join([b"b", b"b", b"a"] * 3_000)
    before = time.process_time()
    found = differences(row(left), row(right))
    assert time.process_time() - before < 2
    assert len(found) <= 2 * MOST_LINES + 1


@given(DOCUMENTS, DOCUMENTS)
def test_a_difference_is_found_where_there_is_one_and_paths_lead_there(one: Any, other: Any) -> None:
    left, right = row([one]), row([other])
    found = [one for one in differences(left, right) if one.name.startswith("$")]
    assert all(one.is_equal for one in found) == (json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))
    for field in found:
        if field.left is not None:
            assert jsonpath.find(field.name, json.loads(left.value.text)).values() == [json.loads(field.left)]


def test_a_difference_is_one_of_two_texts() -> None:
    assert Difference("a", None, None).is_equal
    assert not Difference("a", None, "").is_equal
