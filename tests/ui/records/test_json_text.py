"""What the console shows of numbers is what was written, in every place that shows one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.records.record import Record
from pykafka_ui.records.filters import record_filter
from pykafka_ui.records.json_text import json_text, parsed
from pykafka_ui.records.record_difference import differences
from pykafka_ui.records.records_query import Row
from pykafka_ui.records.values import As, Decoder, ShownValue
from pykafka_ui.render import templates
from pykafka_ui.v3.record_json import concatenated, parse_record

DECODER = Decoder()
NUMBERS = ["1.10", "1e400", "-0", "-0.0", "12345678901234567890.123", "9007199254740993", "1E+2", "NaN", "1" * 5_000]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def shown_on_a_page(value: ShownValue) -> str:
    page = templates().from_string('{% from "value.html" import value_of %}{{ value_of(value) }}')
    return page.render(value=value)


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:20])
def test_a_number_is_shown_as_it_was_written(number: str) -> None:
    shown = DECODER.decode(f'{{"a": [{number}]}}'.encode())
    assert shown.kind == "json"
    assert json.loads(shown.text.replace(number, '"the number"')) == {"a": ["the number"]}
    assert f'<span class="number">{number}</span>' in shown_on_a_page(shown)


def test_numbers_are_compared_and_found_as_they_were_written() -> None:
    rows = [
        Row(0, 1, 2, DECODER.decode(None), DECODER.decode(b'{"a": %s}' % one), [], "", None)
        for one in (b"1.10", b"1.1", b"1e400")
    ]
    pairs = [[(one.left, one.right) for one in differences(rows[0], row) if one.name == "$.a"] for row in rows]
    assert pairs == [[("1.10", "1.10")], [("1.10", "1.1")], [("1.10", "1e400")]]
    large = Record(0, 0, None, b'{"a": 12345678901234567890.123}', ())
    assert record_filter(DECODER, path="$.a", equals="12345678901234567890.123")(large)
    assert not record_filter(DECODER, path="$.a", equals="12345678901234567000")(large)
    price = Record(0, 0, None, b'{"a": 1.10}', ())
    for same in ("1.10", "1.1", "11e-1"):
        assert record_filter(DECODER, path="$.a", equals=same)(price)
    assert record_filter(DECODER, path="$[?@ > 1.05]")(price)


def test_an_object_with_a_name_twice_is_shown_as_text() -> None:
    shown = DECODER.decode(b'{"a": {"b": 1, "b": 2}}')
    assert (shown.kind, shown.text, shown.data) == ("text", '{"a": {"b": 1, "b": 2}}', None)
    assert DECODER.decode(b'{"b": 1, "b": 2}', As.JSON).note == (
        "not JSON: an object has the name 'b' more than once, so it is shown as text"
    )


def test_a_record_that_a_program_sends_keeps_its_digits() -> None:
    (document,) = concatenated('{"value": {"type": "JSON", "data": {"a": [1.10, 1e400], "b": "ü"}}}')
    assert parse_record(document).value == '{"a":[1.10,1e400],"b":"ü"}'.encode()


@given(JSON)
def test_it_is_written_as_python_writes_json(data: Any) -> None:
    for indent in (0, 2):
        assert json_text(data, indent=indent) == json.dumps(data, ensure_ascii=False, indent=indent or None)
        assert json_text(parsed(json_text(data, indent=indent)), indent=indent) == json_text(data, indent=indent)


def test_what_is_cut_off_a_first_line_is_said() -> None:
    assert DECODER.decode(b"7" * 200).first_line == "7" * 200
    assert DECODER.decode(b"7" * 201).first_line == "7" * 199 + "…"
    assert DECODER.decode(b"7 " + b" " * 400 + b"8").first_line == "7…"
