"""The pages of loads: places, groups, what is hidden or was killed, verification with its progress, no password."""

from __future__ import annotations

import multiprocessing
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, expect

from broker.errors import ConfigError
from broker.storage.storage import LocalStorage
from pykafka_ui.command import UiOptions
from pykafka_ui.loads.places import LoadPlace, LoadPlaces, UnknownPlace
from pykafka_ui.loads.verifications import LogSource, Verifications, VerificationState
from spark_connector.loads.history import Owner, intent_of
from spark_connector.loads.plan import plan_load
from tests.support.chromium import Tab
from tests.support.dead_letter_harness import DeltaSite, IcebergSite, dead_letter_world
from tests.support.kafka import Kafka
from tests.support.plain_loads import PlainLoads, open_files
from tests.support.table_harness import DatabaseWorld, IcebergWorld, add_catalog, sqlite_world
from tests.support.topic_data import TopicData
from tests.support.ui_process import UiProcess
from tests.support.waiting import eventually

TOPIC = "ui-loads"


@dataclass(frozen=True)
class Loaded:
    """A directory with two loads of `nightly`, one of `hourly`, and an attempt of `nightly` whose process is dead."""

    nightly: PlainLoads
    loads: list[str]
    killed: str

    @property
    def at(self) -> str:
        return str(self.nightly.to)

    def asked(self, group: str = "nightly", **more: str) -> str:
        return urlencode({"at": self.at, "group": group, **more})


def leave_killed(loads: PlainLoads) -> str:
    """Stage a load as a process does that is killed then."""
    with open_files(loads.target) as site:
        record = plan_load(loads.request(), site)
        assert record is not None
        site.stage(record)
        intent = f"{loads.to}/_staging/files/{record.load_id}/intent.json"
    died = Owner.this_process()
    body = intent_of(record).replace(f'"started": {died.started}'.encode(), b'"started": 1')
    Path(intent).write_bytes(body)
    return record.load_id


@pytest.fixture(scope="module")
def loaded(broker: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    data = TopicData(broker.bootstrap, TOPIC, partitions=2)
    nightly = PlainLoads(broker.bootstrap, TOPIC, tmp_path_factory.mktemp("loads"), group="nightly")
    data.produce(10)
    first = nightly.must_load()
    data.produce(7)
    second = nightly.must_load()
    PlainLoads(broker.bootstrap, TOPIC, nightly.to, group="hourly", new_group=True).must_load()
    data.produce(1)
    return Loaded(nightly, [first, second], leave_killed(nightly))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DatabaseWorld:
    """A table with one load of six rows."""
    return sqlite_world(tmp_path_factory.mktemp("table"))


@pytest.fixture(scope="module")
def ui(broker: Kafka, loaded: Loaded, table: DatabaseWorld) -> Iterator[UiProcess]:
    unreachable = "postgresql://ann:secret@127.0.0.1:1/lake#flights"
    places = (loaded.at, f"{table.address.url}#{table.address.table}", unreachable)
    with UiProcess(broker.bootstrap, *(word for place in places for word in ("--loads", place))) as process:
        yield process


def test_places_and_their_groups(ui: UiProcess, loaded: Loaded, table: DatabaseWorld) -> None:
    files, lake, unreachable = ui.get("/api/loads").json["places"]
    hourly, nightly = files["groups"]
    assert (hourly["group"], hourly["loads"], hourly["rows"], hourly["to_look_at"]) == ("hourly", 1, 17, [])
    assert (nightly["loads"], nightly["rows"], nightly["topics"]) == (2, 17, [TOPIC])
    assert nightly["to_look_at"] == [{"load_id": loaded.killed, "state": "killed"}]
    assert [(one["group"], one["format"], one["offsets"]) for one in lake["groups"]] == [(table.group, "sql", "table")]
    assert unreachable["groups"] == []
    assert "cannot connect" in unreachable["error"]


def test_no_password_is_shown(ui: UiProcess) -> None:
    for path in ("/loads", "/api/loads"):
        assert "ann" in ui.get(path).text
        assert "secret" not in ui.get(path).text


def test_the_history_of_a_group(ui: UiProcess, loaded: Loaded) -> None:
    rows = ui.get(f"/api/loads/history?{loaded.asked()}").json["loads"]
    assert [(row["load_id"], row["state"], row["rows"]) for row in rows] == [
        (loaded.loads[0], "published", 10),
        (loaded.loads[1], "published", 7),
        (loaded.killed, "killed", 0),
    ]
    assert rows[2]["owner"]["pid"] == os.getpid()
    newest = ui.get(f"/api/loads/history?{loaded.asked(limit='1')}").json["loads"]
    assert [row["load_id"] for row in newest] == [loaded.killed]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/loads/group?at=/elsewhere&group=nightly", "/elsewhere is no place of --loads"),
        ("/loads/group?{here}&group=nobody", "has no loads of a group &#39;nobody&#39;"),
        ("/loads/load?{here}&group=nightly&id=none", "nightly has no load &#39;none&#39;"),
    ],
)
def test_what_is_not_there(ui: UiProcess, loaded: Loaded, path: str, message: str) -> None:
    answer = ui.get(path.format(here=urlencode({"at": loaded.at})))
    assert answer.status == 404
    assert message in answer.text


def test_one_reads_what_was_loaded_and_verifies_it(tab: Tab, loaded: Loaded, table: DatabaseWorld) -> None:
    page = tab.open("/")
    page.get_by_role("link", name="Loads", exact=True).click()
    expect(page.get_by_role("row").filter(has_text="nightly")).to_contain_text("failed")
    expect(page.get_by_role("row").filter(has_text="nightly")).to_contain_text(f"{loaded.killed} was killed")
    expect(page.get_by_role("row").filter(has_text=table.group)).to_contain_text("sql")
    page.get_by_role("link", name="nightly").click()
    expect(page.locator("#list tbody tr")).to_have_count(3)
    expect(page.locator("#list tbody tr").first).to_contain_text(loaded.killed)
    page.get_by_role("button", name="Verify").click()
    expect(page.get_by_text("Verified: 2 loads agree")).to_be_visible(timeout=60_000)
    expect(page.get_by_role("row").filter(has_text=loaded.loads[0])).to_contain_text("ok")
    page.get_by_role("link", name=loaded.loads[1]).click()
    expect(page.get_by_text("7 rows committed, 7 found, 7 in the log")).to_be_visible()
    page.get_by_role("link", name=f"{TOPIC}-0").click()
    expect(page.locator("#records tbody tr").first).to_be_visible()


def test_a_row_that_is_missing_is_found(broker: Kafka, chromium: Browser, tmp_path: Path) -> None:
    data = TopicData(broker.bootstrap, "ui-damaged", partitions=2)
    data.produce(10)
    damaged = PlainLoads(broker.bootstrap, "ui-damaged", tmp_path, group="damaged")
    load_id = damaged.must_load()
    (damaged.directory(load_id) / "part-1.parquet").unlink()
    with UiProcess(broker.bootstrap, "--loads", str(tmp_path)) as ui:
        context = chromium.new_context()
        page = Tab(context.new_page(), ui.address).open(
            f"/loads/group?{urlencode({'at': tmp_path, 'group': 'damaged'})}"
        )
        page.get_by_role("button", name="Verify").click()
        expect(page.get_by_text("Verified: not everything agrees.")).to_be_visible(timeout=60_000)
        page.get_by_role("link", name=load_id).click()
        expect(page.get_by_role("heading", name="Verified: mismatch")).to_be_visible()
        expect(page.get_by_text("part-1.parquet is missing")).to_be_visible()
        context.close()


def test_without_loads_there_is_no_such_page(broker: Kafka) -> None:
    with UiProcess(broker.bootstrap) as ui:
        assert "/loads" not in ui.get("/").text
        assert ui.get("/loads").status == 404
        assert ui.get("/api/loads").status == 404


def test_a_verification_is_not_begun_by_a_link_or_another_site(ui: UiProcess, loaded: Loaded) -> None:
    path = f"/loads/verify?{loaded.asked('hourly')}"
    assert ui.get(path).status == 405
    assert ui.post(path, "", {"sec-fetch-site": "cross-site"}).status == 403
    assert ui.get(f"/api/loads/verification?{loaded.asked('hourly')}").status == 404


def test_a_program_verifies(ui: UiProcess, loaded: Loaded) -> None:
    path = f"/api/loads/verification?{loaded.asked('hourly')}"
    assert ui.post(path, "").status == 202
    eventually(lambda: not ui.get(path).json["is_running"])
    found = ui.get(path).json
    assert (found["is_ok"], found["done"], found["loads"], found["error"]) == (True, 1, 1, "")


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a broker that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def state_of(verifications: Verifications, loaded: Loaded, group: str) -> VerificationState:
    state = verifications.state(loaded.at, group)
    assert state is not None
    return state


def test_one_verification_at_a_time_which_can_be_stopped(silent: str, loaded: Loaded) -> None:
    verifications = Verifications(LogSource(silent, {}))
    places = LoadPlaces([LoadPlace(loaded.at)])
    nightly, hourly = (places.target(loaded.at, group) for group in ("nightly", "hourly"))
    verifications.start(loaded.at, nightly)
    verifications.start(loaded.at, nightly)
    with pytest.raises(ConfigError, match=f"one at a time: nightly {re.escape(loaded.at)} is being verified"):
        verifications.start(loaded.at, hourly)
    assert state_of(verifications, loaded, "nightly").is_running
    verifications.stop(loaded.at, "hourly")
    assert state_of(verifications, loaded, "nightly").is_running, "it was another that should be stopped"
    verifications.stop(loaded.at, "nightly")
    eventually(lambda: state_of(verifications, loaded, "nightly").error == "it was stopped")
    verifications.start(loaded.at, hourly)
    verifications.stop()
    eventually(lambda: not state_of(verifications, loaded, "hourly").is_running)


def test_a_process_that_dies_is_told(silent: str, loaded: Loaded) -> None:
    """As for want of memory; the next one can begin."""
    verifications = Verifications(LogSource(silent, {}))
    places = LoadPlaces([LoadPlace(loaded.at)])
    verifications.start(loaded.at, places.target(loaded.at, "nightly"))
    (child,) = multiprocessing.active_children()
    child.kill()
    eventually(lambda: "ended with -9" in state_of(verifications, loaded, "nightly").error)
    verifications.start(loaded.at, places.target(loaded.at, "hourly"))
    verifications.stop()
    eventually(lambda: not state_of(verifications, loaded, "hourly").is_running)


def test_no_secret_is_in_a_repr() -> None:
    source = LogSource("broker:9092", {"kafka.sasl.jaas.config": "secret"})
    options = UiOptions(loads=["postgres://ann:secret@db/lake#t"], hadoop=["token=secret"])
    for one in (source, options, LoadPlace("postgres://ann:secret@db/lake#t")):
        assert "secret" not in repr(one)


@pytest.mark.parametrize(
    "to",
    [
        "postgres://ann:secret@127.0.0.1:1/lake#flights",
        "redshift+x://ann:secret@h/lake?password=secret",
        "s3://ann:secret@h/x",
    ],
)
def test_a_url_of_an_unknown_kind_shows_no_password(to: str) -> None:
    places = LoadPlaces([LoadPlace(to)])
    (found,) = places.content()
    assert found.error
    assert "secret" not in f"{found}"


def test_a_directory_that_may_not_be_read_hides_no_other(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    names = LocalStorage.names

    def refused(self: LocalStorage, path: str) -> list[str]:
        if "forbidden" in self.url:
            raise PermissionError(13, "Permission denied")
        return names(self, path)

    monkeypatch.setattr(LocalStorage, "names", refused)
    forbidden, good = LoadPlaces([LoadPlace("/forbidden"), LoadPlace(loaded.at)]).content()
    assert "Permission denied" in forbidden.error
    assert [one.name for one in good.groups] == ["hourly", "nightly"]


def test_a_group_that_cannot_be_read_hides_no_other(broker: Kafka, loaded: Loaded, tmp_path: Path) -> None:
    for group in ("good", "strange"):
        PlainLoads(broker.bootstrap, TOPIC, tmp_path, group=group, new_group=True).must_load()
    (entry,) = (tmp_path / "_offsets" / "strange").glob("*1.json")
    newer = entry.read_bytes().replace(b'"load": {\n  "version": 1,', b'"load": {\n  "version": 99,')
    assert newer != entry.read_bytes()
    entry.write_bytes(newer)
    good, strange = LoadPlaces([LoadPlace(str(tmp_path))]).content()[0].groups
    assert (good.error, good.rows > 0) == ("", True)
    assert "written by a newer pykafka" in strange.error


def test_why_it_cannot_be_verified(loaded: Loaded) -> None:
    verifications = Verifications(LogSource("127.0.0.1:1", {"kafka.default.api.timeout.ms": "2000"}))
    verifications.start(loaded.at, LoadPlaces([LoadPlace(loaded.at)]).target(loaded.at, "nightly"))
    eventually(lambda: not state_of(verifications, loaded, "nightly").is_running)
    assert "127.0.0.1:1" in state_of(verifications, loaded, "nightly").error


def test_offsets_in_zookeeper(broker: Kafka, zookeeper: str, tmp_path: Path) -> None:
    data = TopicData(broker.bootstrap, "ui-zookeeper", partitions=1)
    data.produce(3)
    connect = f"{zookeeper}/ui-loads"
    PlainLoads(broker.bootstrap, "ui-zookeeper", tmp_path, group="kept-there", zookeeper=connect).must_load()
    without, given = (LoadPlaces([LoadPlace(str(tmp_path), where)]) for where in (None, connect))
    assert "start with --zookeeper" in without.group(str(tmp_path), "kept-there").error
    assert given.group(str(tmp_path), "kept-there").rows == 3


def test_a_history_is_read_again_after_a_while(loaded: Loaded) -> None:
    now = 0.0
    places = LoadPlaces([LoadPlace(loaded.at)], lambda: now)
    first = places.group(loaded.at, "nightly")
    assert places.group(loaded.at, "nightly") is first
    now = 6.0
    assert places.group(loaded.at, "nightly") is not first


def test_the_tables_of_a_catalog_are_places_as_soon_as_they_are_there(tmp_path: Path) -> None:
    now, name = 0.0, add_catalog(tmp_path / "c")
    places = LoadPlaces([], lambda: now, catalogs=[name, "nobody"])
    assert [one.error for one in places.content()] == [one.error for one in places.content() if one.error]
    world = IcebergWorld(name, "nightly")
    world.grow()
    world.load()
    now = 6.0
    table, unknown = places.content()
    at = f"iceberg:lake.rows in {name}"
    assert (table.url, [one.name for one in table.groups], table.groups[0].rows) == (at, ["nightly"], 6)
    assert places.group(at, "nightly").topics == ["t"]
    assert places.target(at, "nightly").catalog == name
    assert "no catalog 'nobody' is configured" in unknown.error
    with pytest.raises(UnknownPlace, match="is no place of --loads or --catalog"):
        places.target("iceberg:lake.other in elsewhere", "nightly")


def test_a_place_must_be_one() -> None:
    with pytest.raises(ConfigError, match="needs a table"):
        LoadPlaces([LoadPlace("sqlite:///lake.db")])
    with pytest.raises(UnknownPlace):
        LoadPlaces([]).target("file:///x", "g")


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_of_dead_letters_has_no_groups_of_its_own(tmp_path: Path, kind: str) -> None:
    """It may be among the places by its URL or by its catalog."""
    bad = dead_letter_world(tmp_path, "etl", bad_kind=kind).bad
    if isinstance(bad, IcebergSite):
        places = LoadPlaces([], catalogs=[bad.catalog])
    else:
        assert isinstance(bad, DeltaSite)
        places = LoadPlaces([LoadPlace(bad.output.url)])
    (place,) = places.content()
    assert (place.error, list(place.groups)) == ("", [])
