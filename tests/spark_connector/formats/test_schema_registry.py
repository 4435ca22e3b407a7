"""The client of schema registries, against one that Confluent's own client registers and serializes with."""

from __future__ import annotations

import base64
import json
import pickle
import socket
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from broker.errors import ConfigError
from spark_connector.errors import ConnectorError
from spark_connector.formats import schema_registry as module
from spark_connector.formats.avro_decoder import AvroDecoder
from spark_connector.formats.json_schema import json_column
from spark_connector.formats.protobuf_descriptors import message_of, schema_of_registry
from spark_connector.formats.registries import registry_of
from spark_connector.formats.schema_registry import SchemaRegistry, UnknownSchema
from spark_connector.formats.value_format import AvroSchema, JsonSchema, ProtobufFiles, RegistrySettings
from spark_connector.options.option_values import OptionValues
from spark_connector.options.registry_options import registry_settings
from tests.support.protobuf_cases import add
from tests.support.schema_registry import Registry, serving

V1 = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]})
V2 = json.dumps(
    {
        "type": "record",
        "name": "R",
        "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string", "default": "?"}],
    }
)


def client(registry: Registry, **more: str) -> SchemaRegistry:
    return SchemaRegistry(RegistrySettings((registry.url,), **more))  # type: ignore[arg-type]


def test_what_confluents_serializer_wrote_is_read_by_old_and_new_schema(registry: Registry) -> None:
    theirs = SchemaRegistryClient({"url": registry.url})
    context = SerializationContext("t", MessageField.VALUE)
    old = AvroSerializer(theirs, V1)({"id": 1}, context)
    new = AvroSerializer(theirs, V2)({"id": 2**40, "name": "x"}, context)
    values = pa.array([old, new, None], pa.binary())
    reader = AvroDecoder(client(registry).subject("t-value"), client(registry))
    assert reader.decode(values).column.to_pylist() == [{"id": 1, "name": "?"}, {"id": 2**40, "name": "x"}, None]
    older = AvroDecoder(client(registry).subject("t-value", "1"), client(registry)).decode(values)
    assert older.column.to_pylist() == [{"id": 1}, None, None]  # a long is no int
    assert list(older.bad) == [1]


def test_every_id_is_asked_for_once(registry: Registry) -> None:
    number = registry.register("s", V1)
    ours = client(registry)
    for _ in range(3):
        assert ours.schema(number) == AvroSchema(V1)
    assert registry.asked == [f"/schemas/ids/{number}"]


def test_unknown_ids_are_asked_for_again_after_a_while(registry: Registry) -> None:
    now = [0.0]
    ours = SchemaRegistry(RegistrySettings((registry.url,)), clock=lambda: now[0])
    for _ in range(3):
        with pytest.raises(UnknownSchema, match="Schema 1 not found"):
            ours.schema(1)
    assert len(registry.asked) == 1
    registry.register("s", V1)
    now[0] = 31.0
    assert ours.schema(1) == AvroSchema(V1)


def test_ids_out_of_the_air_fill_no_memory(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_SCHEMAS", 10)
    ours = client(registry)
    for number in range(100, 130):
        with pytest.raises(UnknownSchema):
            ours.schema(number)
    assert len(ours._schemas) <= 10


def test_references_are_followed(registry: Registry) -> None:
    inner = json.dumps({"type": "record", "name": "In", "fields": [{"name": "q", "type": "int"}]})
    outer = json.dumps({"type": "record", "name": "Out", "fields": [{"name": "a", "type": "In"}]})
    registry.register("in", inner)
    theirs = SchemaRegistryClient({"url": registry.url})
    reference = {"name": "In", "subject": "in", "version": 1}
    number = registry.register("out", outer, references=[reference])
    assert client(registry).schema(number) == AvroSchema(outer, (inner,))
    assert AvroDecoder(client(registry).schema(number)).type == pa.struct([("a", pa.struct([("q", pa.int32())]))])
    assert theirs.get_schema(number).schema_str == outer


def test_other_kinds_of_schema_are_refused(registry: Registry) -> None:
    theirs = SchemaRegistryClient({"url": registry.url})
    number = theirs.register_schema("j", Schema('{"type":"object"}', "JSON"))
    protobuf = theirs.register_schema("p", Schema('syntax = "proto3"; message M {}', "PROTOBUF"))
    avro = registry.register("a", V1)
    ours = client(registry)
    for _ in range(2):
        with pytest.raises(UnknownSchema, match="of type JSON, not AVRO: the format json reads it"):
            ours.schema(number)
        with pytest.raises(UnknownSchema, match="of type PROTOBUF, not AVRO: the format protobuf reads it"):
            ours.schema(protobuf)
        with pytest.raises(UnknownSchema, match="of type AVRO, not JSON: the format avro reads it"):
            ours.check_json(avro)
        with pytest.raises(UnknownSchema, match="of type PROTOBUF, not JSON$"):
            ours.check_json(protobuf)
        ours.check_json(number)
        assert ours.schema(avro) == AvroSchema(V1)
    assert sorted(registry.asked[-3:]) == sorted(f"/schemas/ids/{one}" for one in (number, protobuf, avro))


def test_a_json_schema_comes_with_those_that_it_references_by_their_names(registry: Registry) -> None:
    theirs = SchemaRegistryClient({"url": registry.url})
    city = '{"type":"object","properties":{"name":{"type":"string"}}}'
    address = '{"type":"object","properties":{"city":{"$ref":"city.json"}}}'
    person = '{"type":"object","properties":{"home":{"$ref":"address.json"},"born":{"$ref":"city.json"}}}'
    theirs.register_schema("city", Schema(city, "JSON"))
    to_city = SchemaReference("city.json", "city", 1)
    theirs.register_schema("address", Schema(address, "JSON", [to_city]))
    theirs.register_schema("p", Schema(person, "JSON", [SchemaReference("address.json", "address", 1), to_city]))
    number, schema = client(registry).json_version("p")
    assert (schema.text, dict(schema.references)) == (person, {"address.json": address, "city.json": city})
    assert client(registry).json_schema(number) == schema
    name = pa.struct([("name", pa.string())])
    assert json_column(schema) == pa.struct([("home", pa.struct([("city", name)])), ("born", name)])
    registry.register("a", V1)
    with pytest.raises(UnknownSchema, match="of type AVRO, not JSON"):
        client(registry).json_version("a")


def test_user_and_password_or_a_token(registry: Registry) -> None:
    registry.register("s", V1)
    registry.user_info = "me:hush"
    with pytest.raises(ConnectorError, match=r"\[SCHEMA_REGISTRY_UNAVAILABLE\].*HTTP 401 Unauthorized"):
        client(registry).schema(1)
    assert len(registry.asked) == 1, "a password that is wrong does not get right"
    assert client(registry, user_info="me:hush").schema(1) == AvroSchema(V1)
    registry.user_info, registry.token = None, "t0k3n"
    assert client(registry, bearer_token="t0k3n").schema(1) == AvroSchema(V1)
    settings = RegistrySettings((registry.url,), user_info="me:hush", bearer_token="t0k3n")
    assert "hush" not in repr(settings)
    assert "t0k3n" not in repr(settings)
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_a_login_in_a_url_is_shown_to_no_other(registry: Registry) -> None:
    """As by Confluent's client, which takes the login of each URL from it."""
    registry.register("s", V1)
    seen: list[str] = []

    def down(_method: str, _path: str, authorization: str, _body: bytes) -> tuple[int, Any]:
        seen.append(authorization)
        return 503, {"error_code": 503, "message": "down"}

    with serving(down) as other:
        for urls in ((other, registry.url.replace("://", "://me:hush@")), (other, registry.url)):
            values = OptionValues({"schema.registry.url": ",".join(urls)})
            settings = registry_settings(values, ())
            assert settings is not None
            registry.user_info = "me:hush" if "@" in urls[1] else None
            assert SchemaRegistry(settings).schema(1) == AvroSchema(V1)
        assert seen == ["", ""]
        both = {"schema.registry.url": f"{other},{registry.url}", "schema.registry.basic.auth.user.info": "me:hush"}
        settings = registry_settings(OptionValues(both), ())
        assert settings is not None
        registry.user_info = "me:hush"
        assert SchemaRegistry(settings).schema(1) == AvroSchema(V1)
    assert seen[-1].startswith("Basic "), "an option is for all of them"


def test_what_passes_is_waited_for(registry: Registry) -> None:
    registry.register("s", V1)
    registry.failures = [500, 429]
    assert client(registry).schema(1) == AvroSchema(V1)
    registry.failures = [503] * 3
    with pytest.raises(ConnectorError, match="HTTP 503 Error in the backend data store"):
        client(registry).schema(2)


def test_a_registry_that_is_down_is_no_bad_record_and_another_address_helps(registry: Registry) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{closed.getsockname()[1]}"
        down = SchemaRegistry(RegistrySettings((nowhere,)))
        with pytest.raises(ConnectorError, match="SCHEMA_REGISTRY_UNAVAILABLE"):
            AvroDecoder(AvroSchema(V1), down).decode(pa.array([b"\0\0\0\0\1\2"], pa.binary()))
        registry.register("s", V1)
        assert SchemaRegistry(RegistrySettings((nowhere, registry.url))).schema(1) == AvroSchema(V1)


@pytest.mark.parametrize(
    "answer",
    [
        b"\x15\x03\x03\x00\x02\x02\x46",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}",
        b"HTTP/1.1 500 Oh\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}",
    ],
    ids=["an alert of TLS", "cut off", "a complaint cut off"],
)
def test_what_is_no_answer_of_http_is_none_at_all(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BACK_OFF_S", 0.001)
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_answer, args=(server, answer, module._TRIES))
        thread.start()
        with pytest.raises(ConnectorError, match="SCHEMA_REGISTRY_UNAVAILABLE"):
            SchemaRegistry(RegistrySettings((f"http://127.0.0.1:{server.getsockname()[1]}",))).schema(1)
        thread.join(60)


def _answer(server: socket.socket, answer: bytes, times: int) -> None:
    for _ in range(times):
        peer, _ = server.accept()
        with peer:
            peer.recv(4096)
            peer.sendall(answer)


@pytest.mark.parametrize("references", [3, ["x"], [{"subject": "s"}], [{"subject": "s", "version": "x"}]])
def test_references_that_name_nothing_make_the_schema_unknown(references: object) -> None:
    with pytest.raises(UnknownSchema, match="references without subject"):
        SchemaRegistry(RegistrySettings(("http://h:1",)))._found({"schema": '"int"', "references": references})


def test_redirects_are_not_followed(registry: Registry) -> None:
    registry.failures = [302]
    with pytest.raises(ConnectorError, match="HTTP 302"):
        client(registry, user_info="me:hush").schema(1)
    assert len(registry.asked) == 1


def test_a_process_has_one_view_of_a_registry() -> None:
    settings = RegistrySettings(("http://127.0.0.1:1",))
    assert registry_of(settings) is registry_of(RegistrySettings(("http://127.0.0.1:1",)))


def test_certificates_that_are_not_there() -> None:
    with pytest.raises(ConfigError, match=r"schema\.registry\.ssl\.ca\.location"):
        SchemaRegistry(RegistrySettings(("https://127.0.0.1:1",), ca_location="/nope.pem"))


def test_a_reference_that_is_no_schema_makes_the_json_schema_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = SchemaRegistry(RegistrySettings(("http://h:1",)))
    outer = {"schema": "{}", "schemaType": "JSON", "references": [{"name": "n", "subject": "s", "version": 1}]}
    monkeypatch.setattr(registry, "_get", lambda path: outer if path.startswith("/schemas") else [])
    with pytest.raises(UnknownSchema, match="did not answer with a schema"):
        registry.json_schema(1)


LEVELS = 8


def text_of(kind: str, level: int) -> str:
    """A schema with two fields of the schema below."""
    below = level - 1
    if kind == "AVRO":
        types = [f"R{below}"] * 2 if level else ["int"]
        fields = [{"name": f"f{number}", "type": one} for number, one in enumerate(types)]
        return json.dumps({"type": "record", "name": f"R{level}", "fields": fields})
    if kind == "JSON":
        inner: dict[str, object] = {"$ref": f"R{below}"} if level else {"type": "string"}
        return json.dumps({"type": "object", "properties": {"f0": inner, "f1": inner}})
    file = FileDescriptorProto(name=f"R{level}", package="t", syntax="proto3")
    message = file.message_type.add(name=f"R{level}")
    add(message, "f0", 1, f"t.R{below}" if level else "int32")
    if level:
        file.dependency.append(f"R{below}")
    return base64.b64encode(file.SerializeToString()).decode()


def asked_for(registry: Registry, kind: str, schema_id: int) -> object:
    ours = client(registry)
    read = {"AVRO": ours.schema, "JSON": ours.json_schema, "PROTOBUF": ours.protobuf}
    registry.asked.clear()
    return read[kind](schema_id)


@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
def test_what_many_schemas_refer_to_is_asked_for_once(registry: Registry, kind: str) -> None:
    """Each level refers to the next by two names."""
    number = 0
    for level in range(LEVELS + 1):
        below = [{"name": name, "subject": f"s{level - 1}", "version": 1} for name in (f"R{level - 1}", "other")]
        more = {"references": below} if level else {}
        number = registry.register(f"s{level}", text_of(kind, level), schemaType=kind, **more)
    found = asked_for(registry, kind, number)
    assert registry.asked == [
        f"/schemas/ids/{number}",
        *(f"/subjects/s{level}/versions/1" for level in reversed(range(LEVELS))),
    ]
    if isinstance(found, AvroSchema):
        assert found.references == tuple(text_of(kind, level) for level in range(LEVELS))
    elif isinstance(found, JsonSchema):
        assert dict(found.references)["R7"] == text_of(kind, 7)
    else:
        assert isinstance(found, ProtobufFiles)
        named = {name: text for name, text in found.files if name != "other"}
        schema = schema_of_registry(ProtobufFiles(tuple(named.items())), None)
        assert message_of(schema).full_name == "t.R8"


@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
@pytest.mark.parametrize(
    ("references_of", "why"),
    [
        (
            lambda path: [("s", number) for number in range(1, 600) if "ids" in path],
            "more than 500 schemas, directly or not",
        ),
        (lambda path: [("s", int(path.rpartition("/")[2]) + 1)], "nested deeper than 16 levels, or in a circle"),
        (lambda path: [("a", 1), ("b", 1)], "nested deeper than 16 levels, or in a circle"),
    ],
    ids=["many", "deep", "circle"],
)
def test_a_schema_that_refers_to_too_many_is_unknown(
    kind: str,
    references_of: Callable[[str], list[tuple[str, int]]],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, asked = SchemaRegistry(RegistrySettings(("http://h:1",))), list[str]()

    def answer(path: str) -> dict[str, object]:
        asked.append(path)
        places = references_of(path.removesuffix("?format=serialized"))
        references = [
            {"name": f"{subject} {version}", "subject": subject, "version": version} for subject, version in places
        ]
        return {"schema": text_of(kind, 0), "schemaType": kind, "references": references}

    monkeypatch.setattr(ours, "_get", answer)
    read = {"AVRO": ours.schema, "JSON": ours.json_schema, "PROTOBUF": ours.protobuf}
    with pytest.raises(UnknownSchema, match=why):
        read[kind](1)
    assert len(asked) == len(set(asked)) <= 501


def test_a_reference_to_a_schema_of_another_kind_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = SchemaRegistry(RegistrySettings(("http://h:1",)))
    reference = {"name": "In", "subject": "in", "version": 1}
    answers = {"schemaType": "AVRO", "schema": V1, "references": [reference]}
    monkeypatch.setattr(ours, "_get", lambda path: answers if "ids" in path else {"schemaType": "JSON", "schema": "{}"})
    with pytest.raises(UnknownSchema, match="it is of type AVRO, and refers to 'In' of type JSON"):
        ours.schema(1)
