"""Keys and values as text: whatever the bytes are, something can be shown, and it stays small."""

from __future__ import annotations

import io
import itertools
import json
from typing import Any

import fastavro
import jsonpath_rfc9535 as jsonpath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ConfigError
from broker.records.record import Record
from broker.tools.record_text import as_json_data
from pykafka_ui import serve
from pykafka_ui.records.filters import record_filter
from pykafka_ui.records.json_text import visible
from pykafka_ui.records.values import MOST_SHOWN, As, Decoder
from spark_connector.errors import ConnectorError
from spark_connector.formats.schema_registry import UnknownSchema
from spark_connector.formats.value_format import AvroSchema

DECODER = Decoder()
SCHEMA = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "name", "type": "string"}, {"name": "raw", "type": "bytes"}],
}


class Registry:
    """One schema, number 7."""

    def __init__(self, schema: dict[str, Any] = SCHEMA) -> None:
        self._schema = schema

    def kind(self, schema_id: int) -> str:
        self.schema(schema_id)
        return "AVRO"

    def schema(self, schema_id: int) -> AvroSchema:
        if schema_id != 7:
            raise UnknownSchema(f"no schema {schema_id}")
        return AvroSchema(json.dumps(self._schema))


def framed(schema_id: int, name: str) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(SCHEMA), {"name": name, "raw": b"\xff"})
    return b"\0" + schema_id.to_bytes(4, "big") + written.getvalue()


@given(st.binary(max_size=2000), st.sampled_from(As))
def test_any_bytes_can_be_shown_in_every_way(value: bytes, how: As) -> None:
    for decoder in (DECODER, Decoder(Registry())):  # type: ignore[arg-type]
        shown = decoder.decode(value, how)
        assert shown.size == len(value)
        assert len(shown.text) <= MOST_SHOWN
        assert all(one.isprintable() or one in "\t\r\n" for one in shown.text) or shown.data is not None
        assert len(shown.first_line) <= 200
    json.dumps(as_json_data(value))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "null"),
        (b"", "text"),
        (b"caf\xc3\xa9\n", "text"),
        (b"\x00\x01", "hex"),
        (b"\xff\xfe", "hex"),
        (b'{"a": [1, null]}', "json"),
        (b"[1]", "json"),
        (b"17", "text"),
        (b"{not json", "text"),
        (b"[" * 200_000, "text"),
        (b"[" * 200_000 + b"]" * 200_000, "text"),
        (b"[" * 500 + b"]" * 500, "json"),
        (b"x" * 5_000_000, "text"),
        (b"\0" * 5_000_000, "hex"),
        (json.dumps(list(range(30_000))).encode(), "json"),
        (json.dumps(list(range(100_000))).encode(), "text"),  # it would be cut anyway
        (b'{"a": 1e999}', "json"),
        (b'{"a": "\\ud800"}', "json"),
    ],
)
def test_what_a_value_looks_like(value: bytes | None, kind: str) -> None:
    shown = DECODER.decode(value)
    assert shown.kind == kind
    assert len(shown.text) <= MOST_SHOWN
    if value is not None and len(value) > MOST_SHOWN * 2:
        assert shown.data is None, "too large to be folded"


@pytest.mark.parametrize("hidden", ["\u202e", "\u2066", "\u200b", "\x07", "\ue000", "\U000e0041"])
def test_what_is_not_seen_or_turns_a_line_round_is_spelled_out(hidden: str) -> None:
    text = json.dumps({f"a{hidden}": f"{hidden}b"}, ensure_ascii=False)
    shown = DECODER.decode(text.encode())
    assert hidden not in shown.text
    assert json.loads(shown.text) == json.loads(text), "it is the same JSON"
    assert hidden not in DECODER.decode(f"{hidden}b".encode(), As.TEXT).text
    assert visible("Zürich 東京 😀\n\t") == "Zürich 東京 😀\n\t"


def test_avro_is_decoded_by_the_writers_schema() -> None:
    decoder = Decoder(Registry())  # type: ignore[arg-type]
    shown = decoder.decode(framed(7, "Ann"))
    assert (shown.kind, shown.data["name"]) == ("avro", "Ann")
    unknown = decoder.decode(framed(8, "Ann"), As.AVRO)
    assert (unknown.kind, unknown.note) == ("hex", "no schema 8")
    assert decoder.decode(framed(7, "Ann")[:-3], As.AVRO).note.startswith("not a value of schema 7")
    assert DECODER.decode(framed(7, "Ann"), As.AVRO).note == "no schema registry was given: --schema-registry"


def passes(value: bytes | None, **asked: Any) -> bool:
    record = Record(0, 0, b"Key-7", value, (("Name", b"Content"), ("empty", None)))
    places = asked.pop("places", "key,value,headers").split(",")
    return bool(record_filter(DECODER, places=places, **asked)(record))


def test_text_is_found_where_it_is_looked_for() -> None:
    assert passes(b"x", text="KEY-7")
    assert passes(b"x", text="content")
    assert passes(b"x", text="name")
    assert not passes(b"x", text="key", places="value")
    assert passes(b"some Value", text="value", places="value")
    assert not passes(None, text="z")
    assert passes("Österreich".encode(), text="österreich")
    assert not passes(b"\xff", text="ö")
    assert passes(None)


def test_a_json_path_finds_values() -> None:
    value = b'{"user": {"name": "Ann", "age": 7, "tags": ["a", "b"]}}'
    assert passes(value, path="$.user.name")
    assert passes(value, path="$.user.name", equals="Ann")
    assert passes(value, path="$.user.age", equals="7")
    assert passes(value, path="$.user.tags[*]", equals="b")
    assert passes(value, path="$[?@.age > 6]")
    assert not passes(value, path="$.user.name", equals="Bob")
    assert not passes(value, path="$.nobody")
    assert not passes(b"no json", path="$.user")
    large = json.dumps({"rows": ["x" * 100] * 1000, "user": {"id": 5}}).encode()
    assert passes(large, path="$.user.id", equals="5"), "larger than what is shown"
    assert passes(b" 17", path="$", equals="17")
    assert not passes(None, path="$")


def test_a_filter_that_says_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"path=x\["):
        passes(b"x", path="x[")
    with pytest.raises(ConfigError, match="equals needs a path"):
        passes(b"x", equals="1")
    with pytest.raises(ConfigError, match="in=body: must be one of key, value, headers"):
        passes(b"x", places="body")
    with pytest.raises(ConfigError, match="path="):
        passes(b"x", path="$[?search(@.a, '(a+)+b$')]")


NESTED = json.loads("[" * 60 + "]" * 60)
WIDE = json.loads("[" * 40 + ", ".join(["1"] * 100_000) + "]" * 40)
LARGE = list(range(300_000))


@pytest.mark.parametrize(
    ("value", "path", "equals"),
    [
        (NESTED, "$..*..*..*..nope", ""),
        (NESTED, "$..*..*..*..*..*", "nothing"),
        (LARGE, "$[?$[?@==3]]", ""),
        (LARGE, "$[?@>5 && @<3]", ""),
        (LARGE, "$[ ?$..nope]", ""),
        (WIDE, "$..[0]..[0]..[0].nope", ""),
        (LARGE, "$[*,*,*,*]", "x"),
        (LARGE, "$[?count($[*]) == 2]", ""),
        ([["x" * 100_000]] * 300, "$..*", "x"),
    ],
)
def test_a_path_takes_so_many_steps_in_a_value_and_says_where_it_gave_up(value: object, path: str, equals: str) -> None:
    content = json.dumps(value).encode()
    wanted = record_filter(DECODER, path=path, equals=equals, clock=lambda: 0.0)
    assert not wanted(Record(0, 0, None, content, ()))
    assert wanted.given_up == 1
    assert not wanted(Record(0, 0, None, b'{"a": 1}', ()))
    assert wanted.given_up == 1, "each value has steps of its own"


def test_a_path_looks_at_the_clock_while_it_is_in_a_value() -> None:
    asked = itertools.count()
    wanted = record_filter(DECODER, path="$[*]", equals="x", clock=lambda: float(next(asked)))
    assert not wanted(Record(0, 0, None, json.dumps(LARGE).encode(), ()))
    assert (wanted.given_up, next(asked)) == (1, 4)


def test_a_path_looks_at_the_clock_before_each_use_of_a_filter() -> None:
    """Which may compare all of a value with all of it."""
    asked = itertools.count()
    value = {"a": [[1.5] * 5], "b": [[1.5] * 5], "c": list(range(500))}
    wanted = record_filter(DECODER, path="$.c[?$.a != $.b]", clock=lambda: next(asked) / 10)
    assert not wanted(Record(0, 0, None, json.dumps(value).encode(), ()))
    assert (wanted.given_up, next(asked)) == (1, 13)


def test_the_steps_of_a_path_find_what_the_library_finds() -> None:
    value = {"a": [{"b": n, "c": {"d": [n, {"e": n}]}} for n in range(5)], "x y": None}
    for path in ("$..e", "$.a[?@.b > 2].c", "$.a[1:4:2]..[0]", "$.a[?@.c.d[1].e == $.a[3].b]", "$['x y']", "$.a[-1].b"):
        found = jsonpath.find(path, value).values()
        for one in found:
            text = one if isinstance(one, str) else json.dumps(one)
            assert passes(json.dumps(value).encode(), path=path, equals=text), path
        assert not passes(json.dumps(value).encode(), path=path, equals="of nobody")


def test_a_path_that_never_ends_does() -> None:
    nested: object = 1
    for _ in range(30):
        nested = [nested, nested] if len(json.dumps(nested)) < 2000 else [nested]
    assert not passes(json.dumps(nested).encode(), path="$..*..*..*", equals="nothing")


def test_avro_that_contains_itself_is_shown_to_some_depth_whatever_its_own() -> None:
    """fastavro would end the process at a value of 10 kB that is nothing but depth."""
    node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    decoder = Decoder(Registry(node))  # type: ignore[arg-type]
    shown = decoder.decode(b"\0\0\0\0\7" + b"\2" * 3 + b"\0")
    assert (shown.kind, shown.data) == ("avro", {"next": {"next": {"next": {"next": None}}}})
    deep = decoder.decode(b"\0\0\0\0\7" + b"\2" * 100_000 + b"\0")
    assert (deep.kind, deep.size) == ("avro", 100_006)
    kids = [{"name": f"kid{n}", "type": ["null", "Tree"]} for n in range(9)]  # of which 15 levels fill any memory
    tree = Decoder(Registry({"type": "record", "name": "Tree", "fields": kids}))  # type: ignore[arg-type]
    assert tree.decode(b"\0\0\0\0\7" + b"\2" + b"\0" * 17).data["kid0"]["kid8"] is None


def test_avro_with_an_invalid_logical_type_is_shown_without_it() -> None:
    """As Connect writes a NUMBER of Oracle's."""
    number = {"type": "bytes", "logicalType": "decimal", "precision": 64, "scale": 127}
    row = {"type": "record", "name": "Row", "fields": [{"name": "n", "type": number}]}
    shown = Decoder(Registry(row)).decode(b"\0\0\0\0\7\2\x2a")  # type: ignore[arg-type]
    assert (shown.kind, shown.data) == ("avro", {"n": "*"})


def test_a_registry_that_does_not_answer_is_not_asked_for_every_record() -> None:
    asked = []

    class Down:
        def kind(self, schema_id: int) -> str:
            asked.append(schema_id)
            raise ConnectorError("SCHEMA_REGISTRY_UNAVAILABLE", "it does not answer")

    decoder = Decoder(Down())  # type: ignore[arg-type]
    for _ in range(100):
        assert decoder.decode(framed(7, "Ann")).kind == "hex"
    assert asked == [7]


@pytest.mark.parametrize(
    "path", ["$[?count($..*) > 5]", "$[?@..x]", "$" + ".a" * 1000, "$[?" + "(" * 500 + "@" + ")" * 500 + "]"]
)
def test_a_path_that_may_take_for_ever_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="path="):
        record_filter(Decoder(), path=path)


def test_a_registrys_password_is_not_kept_in_its_address() -> None:
    made = serve._registry("http://ann:secret@registry:8081, http://registry-2:8081")
    assert made.urls == ("http://registry:8081", "http://registry-2:8081")
    assert made.user_info == "ann:secret"
    assert "secret" not in repr(made)
