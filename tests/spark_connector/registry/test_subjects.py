"""What a registry holds, and the records that it keeps it in."""

from __future__ import annotations

import http.client
import json
import threading
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_connector.registry.rest import Api, serving
from spark_connector.registry.subjects import Check, Refusal, Schema, Subjects
from tests.spark_connector.formats.test_schema_registry import V1, V2

LONG = '{"type":"record","name":"R","fields":[{"name":"id","type":"long"}]}'
TEXT = '{"type":"record","name":"R","fields":[{"name":"id","type":"string"}]}'


class World:
    """An API in memory, and the records that it wrote."""

    def __init__(self) -> None:
        self.subjects = Subjects()
        self.records: list[tuple[bytes, bytes]] = []
        self.api = Api(self.subjects, self._write)
        self.guid = ""
        """Of the last answer that had one."""

    def _write(self, record: tuple[bytes, bytes]) -> None:
        self.records.append(record)
        self.subjects.apply(*record)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The document, without a GUID; (status, code) of a refusal."""
        status, document = self.api.answer(method, path, b"" if body is None else json.dumps(body).encode())
        if isinstance(document, dict):
            self.guid = document.pop("guid", self.guid)
        return document if status == 200 else (status, document["error_code"])

    def post(self, subject: str, schema: str, **more: Any) -> Any:
        return self.ask("POST", f"/subjects/{subject}/versions", {"schema": schema, **more})


@pytest.fixture
def world() -> World:
    return World()


def test_a_schema_has_one_id_and_a_version_in_each_subject(world: World) -> None:
    assert [world.post(*one)["id"] for one in (("a", V1), ("a", V1), ("b", V1), ("a", V2), ("a", V1))] == [
        1,
        1,
        1,
        2,
        1,
    ]
    assert world.ask("GET", "/subjects") == ["a", "b"]
    assert world.ask("GET", "/subjects/a/versions") == [1, 2]
    assert world.ask("GET", "/subjects/a/versions/latest") == {"subject": "a", "version": 2, "id": 2, "schema": V2}
    assert world.ask("GET", "/subjects/a/versions/1/schema") == V1
    assert world.ask("GET", "/schemas/ids/2") == {"schema": V2}
    assert world.ask("GET", "/schemas/ids/1/versions") == [
        {"subject": "a", "version": 1},
        {"subject": "b", "version": 1},
    ]
    assert world.ask("POST", "/subjects/a", {"schema": V2})["version"] == 2
    assert world.ask("POST", "/subjects/b", {"schema": V2}) == (404, 40403)


def test_records_are_those_of_confluents_topic(world: World) -> None:
    world.post("s", V1)
    world.post("j", "{}", schemaType="JSON")
    world.ask("PUT", "/config", {"compatibility": "NONE"})
    keys = [json.loads(key) for key, _ in world.records]
    assert world.records[0][0] == b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}'
    assert keys[2] == {"keytype": "CONFIG", "subject": None, "magic": 0}
    assert json.loads(world.records[0][1]) == {"subject": "s", "version": 1, "id": 1, "schema": V1, "deleted": False}
    assert json.loads(world.records[1][1])["schemaType"] == "JSON"
    assert json.loads(world.records[2][1]) == {"compatibilityLevel": "NONE"}


def test_what_a_real_registry_wrote_is_taken_over(world: World) -> None:
    def record(version: int, schema_id: int, schema: str, **more: Any) -> None:
        key = {"keytype": "SCHEMA", "subject": "s", "version": version, "magic": 1}
        value = {"subject": "s", "version": version, "id": schema_id, "schema": schema, "deleted": False, **more}
        world.subjects.apply(json.dumps(key).encode(), json.dumps(value).encode())

    world.subjects.apply(b'{"keytype":"NOOP","magic":0}', None)
    record(1, 7, V1, guid="x", ruleSet=None, metadata={})
    record(2, 9, V2, deleted=True)
    assert world.ask("GET", "/subjects/s/versions") == [1]
    assert world.ask("GET", "/schemas/ids/9") == {"schema": V2}, "records with its id are still there"
    assert world.post("s", LONG) == {"id": 10}
    assert world.ask("GET", "/subjects/s/versions") == [1, 3], "a version of a deleted schema is not given again"
    world.subjects.apply(b'{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}', b'{"subject":"s","version":3}')
    assert world.ask("GET", "/subjects") == []
    assert world.ask("GET", "/subjects/s/versions/latest") == (404, 40401)
    world.subjects.apply(b'{"keytype":"SCHEMA","subject":"s","version":3,"magic":1}', None)
    assert world.post("s", V1) == {"id": 7}


@given(st.lists(st.tuples(st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=20))))
def test_records_of_others_change_nothing(records: list[tuple[bytes | None, bytes | None]]) -> None:
    subjects = Subjects()
    for key, value in [*records, (b'{"keytype":"SCHEMA"}', b"{}"), (b"[]", b"1"), (b'{"keytype":"CONFIG"}', b"[]")]:
        subjects.apply(key, value)
    assert subjects.names() == []
    assert subjects.level("s") == "BACKWARD"


DAMAGED = {
    "schema": (b'{"keytype":"SCHEMA","subject":"s","version":1}', b'{"id":1,"schema":"\\"int\\""}'),
    "level": (b'{"keytype":"CONFIG","subject":null}', b'{"compatibilityLevel":"FULL"}'),
}


@pytest.mark.parametrize(
    ("kind", "part", "damage"),
    [
        ("schema", b'"id":1', b'"id":1e999'),
        ("schema", b'"id":1', b'"id":9999999999'),
        ("schema", b'"id":1', b'"id":0'),
        ("schema", b'"version":1', b'"version":-1'),
        ("schema", b'"version":1', b'"version":1e999'),
        ("schema", b'"subject":"s"', b'"subject":null'),
        ("schema", b'"id":1', b'"references":[{"name":"a","subject":"s","version":1e999}],"id":1'),
        ("schema", b'{"id":1', b"[" * 200_000),
        ("level", b'"FULL"', b"null"),
        ("level", b'"FULL"', b'"full"'),
        ("level", b'"FULL"', b'["FULL"]'),
    ],
    ids=lambda one: str(one)[:40],
)
def test_a_damaged_record_changes_nothing(kind: str, part: bytes, damage: bytes) -> None:
    subjects = Subjects()
    whole = DAMAGED[kind]
    subjects.apply(*[one.replace(part, damage) for one in whole])
    assert (subjects.names(), subjects.level("s")) == ([], "BACKWARD")
    assert subjects.register("t", Schema('"int"'))[0] == 1, "and it takes no id"
    subjects.apply(*whole)
    assert (subjects.names(), subjects.level("s")) != ([], "BACKWARD")


@pytest.mark.parametrize(
    ("level", "older", "newer", "why"),
    [
        ("BACKWARD", V1, LONG, None),
        ("FORWARD", V1, LONG, "long was written, which cannot be read as int"),
        ("FULL", V1, LONG, "long was written, which cannot be read as int"),
        ("NONE", V1, TEXT, None),
        ("BACKWARD", V1, TEXT, "int was written, which cannot be read as string"),
        ("BACKWARD", V1, V2, None),
        ("BACKWARD", V2, V1.replace("int", "long"), None),
        ("FORWARD", V1.replace("int", "long"), V2, None),
        ("BACKWARD", V1, V2.replace(', "default": "?"', ""), "without field name, which has no default"),
        (
            "BACKWARD",
            '{"type":"enum","name":"E","symbols":["A","B"]}',
            '{"type":"enum","name":"E","symbols":["A"]}',
            "written with B, which is missing",
        ),
        ("BACKWARD", '["int","string"]', '["int","null"]', "string was written, which cannot be read"),
        (
            "BACKWARD",
            '{"type":"array","items":"int"}',
            '{"type":"array","items":"string"}',
            "field []: int was written",
        ),
    ],
)
def test_compatibility_of_avro_is_asked_for(world: World, level: str, older: str, newer: str, why: str | None) -> None:
    world.ask("PUT", "/config/s", {"compatibility": level})
    world.post("s", older)
    answer = world.ask("POST", "/compatibility/subjects/s/versions/latest?verbose=true", {"schema": newer})
    assert answer["is_compatible"] is (why is None)
    if why is None:
        assert world.post("s", newer) == {"id": 2}
    else:
        assert why in answer["messages"][0]
        assert world.post("s", newer) == (409, 409)
        with pytest.raises(Refusal, match='incompatible with an earlier schema for subject "s"'):
            world.api.register("s", Schema(newer))


def test_a_level_may_look_at_all_versions(world: World) -> None:
    assert world.ask("GET", "/config") == {"compatibilityLevel": "BACKWARD"}
    for schema in (LONG, V2):
        world.post("s", schema)
    newest = V2.replace(', "default": "?"', "")
    assert world.ask("POST", "/compatibility/subjects/s/versions/2", {"schema": newest})["is_compatible"]
    assert not world.ask("POST", "/compatibility/subjects/s/versions/1", {"schema": newest})["is_compatible"]
    world.ask("PUT", "/config/s", {"compatibility": "BACKWARD_TRANSITIVE"})
    assert world.ask("GET", "/config/s") == {"compatibilityLevel": "BACKWARD_TRANSITIVE"}
    assert world.post("s", newest) == (409, 409)


def test_other_kinds_of_schema_are_kept_as_they_are(world: World) -> None:
    assert world.post("j", '{"type":"object"}', schemaType="JSON") == {"id": 1}
    assert world.post("j", '{"type":"string"}', schemaType="JSON") == {"id": 2}, "not compared"
    assert world.post("p", 'syntax = "proto3";', schemaType="PROTOBUF") == {"id": 3}
    assert world.ask("GET", "/schemas/ids/3") == {"schemaType": "PROTOBUF", "schema": 'syntax = "proto3";'}
    assert world.post("p", V1) == (409, 409)


def test_references(world: World) -> None:
    world.post("inner", '{"type":"record","name":"p.I","fields":[]}')
    reference = {"name": "p.I", "subject": "inner", "version": 1}
    outer = '{"type":"record","name":"p.O","fields":[{"name":"i","type":"p.I"}]}'
    assert world.post("outer", outer) == (422, 42201)
    assert world.post("outer", outer, references=[{**reference, "version": 2}]) == (422, 42201)
    assert world.post("outer", outer, references=[reference]) == {"id": 2}
    assert world.ask("GET", "/schemas/ids/2")["references"] == [reference]


@pytest.mark.parametrize(
    ("method", "path", "body", "answer"),
    [
        ("GET", "/subjects/s/versions", None, (404, 40401)),
        ("GET", "/subjects/known/versions/9", None, (404, 40402)),
        ("GET", "/subjects/known/versions/x", None, (422, 42202)),
        ("GET", "/schemas/ids/99", None, (404, 40403)),
        ("POST", "/subjects/s/versions", {"schema": "{"}, (422, 42201)),
        ("POST", "/subjects/s/versions", {"schema": "1", "schemaType": "JSON"}, (422, 42201)),
        ("POST", "/subjects/s/versions", {"schema": "{}", "schemaType": "XML"}, (422, 42201)),
        ("POST", "/subjects/s/versions", {}, (422, 42201)),
        ("POST", "/subjects/s/versions", {"schema": "{}", "references": [{}]}, (422, 42201)),
        ("POST", "/subjects/s/versions", [1], (422, 422)),
        ("PUT", "/config", {"compatibility": "SOME"}, (422, 42203)),
        ("DELETE", "/subjects/known", None, (404, 404)),
        ("GET", "/elsewhere", None, (404, 404)),
    ],
)
def test_what_it_refuses(world: World, method: str, path: str, body: Any, answer: tuple[int, int]) -> None:
    world.post("known", V1)
    assert world.ask(method, path, body) == answer
    assert world.api.answer("POST", "/subjects/s", b"{")[0] == 400


def refers(subjects: range, version: int = 1) -> list[dict[str, Any]]:
    return [{"name": f"r{one}", "subject": f"s{one}", "version": version} for one in subjects]


def test_references_are_followed_once_each_however_they_are_nested(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten levels of 30 that refer to all of the level below are 30^10 ways."""
    asked: list[str] = []
    version = Subjects.version

    def counted(self: Subjects, subject: str, wanted: str) -> Any:
        asked.append(subject)
        return version(self, subject, wanted)

    monkeypatch.setattr(Subjects, "version", counted)
    for level in range(10):
        below = refers(range((level - 1) * 30, level * 30)) if level else []
        for one in range(level * 30, level * 30 + 30):
            key = {"keytype": "SCHEMA", "subject": f"s{one}", "version": 1, "magic": 1}
            text = json.dumps({"type": "record", "name": f"R{one}", "fields": []})
            value = {"id": one + 1, "schema": text, "references": below}
            world.subjects.apply(json.dumps(key).encode(), json.dumps(value).encode())
    assert world.post("top", '"int"', references=refers(range(270, 300))) == {"id": 301}
    assert len(asked) <= 3 * 300, "once to check, once to see that nothing has changed"


def test_references_have_a_limit(world: World) -> None:
    for one in range(501):
        key = {"keytype": "SCHEMA", "subject": f"s{one}", "version": 1, "magic": 1}
        world.subjects.apply(json.dumps(key).encode(), json.dumps({"id": one + 1, "schema": '"int"'}).encode())
    assert world.post("most", '"int"', references=refers(range(500))) == {"id": 502}
    assert world.post("more", '"int"', references=refers(range(501))) == (422, 42201)


def test_nobody_waits_while_a_schema_is_looked_at(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    looking, done = threading.Event(), threading.Event()
    complaints = Check.complaints

    def slow(self: Check) -> list[str]:
        looking.set()
        assert done.wait(30)
        return complaints(self)

    world.post("a", V1)
    monkeypatch.setattr(Check, "complaints", slow)
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda: answers.append(world.post("b", V2))),
        threading.Thread(
            target=lambda: answers.append(world.ask("POST", "/compatibility/subjects/a/versions", {"schema": V2}))
        ),
    ]
    for thread in threads:
        looking.clear()
        thread.start()
        assert looking.wait(30)
        assert world.ask("GET", "/subjects/a/versions") == [1]
    done.set()
    for thread in threads:
        thread.join()
    assert sorted(answers, key=str) == [{"id": 2}, {"is_compatible": True}]


def test_what_was_registered_while_a_schema_was_looked_at_counts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    complaints = Check.complaints

    def overtaken(self: Check) -> list[str]:
        found = complaints(self)
        monkeypatch.setattr(Check, "complaints", complaints)
        assert world.post("s", TEXT) == {"id": 1}
        return found

    monkeypatch.setattr(Check, "complaints", overtaken)
    assert world.post("s", LONG) == (409, 409), "not compatible with what came in between"
    assert world.ask("GET", "/subjects/s/versions") == [1]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:80"}, 200),
        ({"Host": "evil.example"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 403),
        ({"Content-Length": "99999999999"}, 413),
        ({"Content-Length": "9" * 5000}, 413),
        ({"Content-Length": "-1"}, 413),
    ],
)
def test_the_server_answers_programs_and_no_page_of_another_site(
    world: World, headers: dict[str, str], status: int
) -> None:
    with serving(world.api) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
        for method in ("GET", "POST"):
            connection.request(method, "/subjects" if method == "GET" else "/subjects/s", None, headers)
            answer = connection.getresponse()
            answer.read()
            is_link = headers.get("Sec-Fetch-Mode") == "navigate"
            assert answer.status == (status if method == "GET" else 403 if is_link else {200: 422}.get(status, status))
        connection.close()


def test_a_schema_has_one_guid_wherever_it_is_registered(world: World) -> None:
    world.post("a", V1)
    guid = world.guid
    assert str(uuid.UUID(guid)) == guid
    assert world.ask("GET", f"/schemas/guids/{guid}") == {"schema": V1}
    for path in ("/schemas/ids/1", "/subjects/a/versions/1"):
        world.guid = ""
        world.ask("GET", path)
        assert world.guid == guid
    world.post("a", V2)
    assert world.guid != guid
    other = World()
    other.post("x", LONG)
    other.post("y", V1)
    assert other.guid == guid
    assert world.ask("GET", f"/schemas/guids/{uuid.UUID(int=1)}") == (404, 40403)


def test_a_guid_that_a_real_registry_gave_is_kept(world: World) -> None:
    given = "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"
    key = {"keytype": "SCHEMA", "subject": "s", "version": 1, "magic": 1}
    value = {"subject": "s", "version": 1, "id": 1, "guid": given, "schema": V1}
    world.subjects.apply(json.dumps(key).encode(), json.dumps(value).encode())
    assert world.ask("GET", f"/schemas/guids/{given}") == {"schema": V1}
    world.ask("GET", "/schemas/ids/1")
    assert world.guid == given.lower()
