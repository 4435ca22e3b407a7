"""Records of loads that a stranger has written: whatever they say, nothing outside the directory is touched or opened.

The stranger may write the commit log, the staging area and what lies beside the loads; what lies around the directory
is private.
"""

from __future__ import annotations

import contextlib
import copy
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.errors import PykafkaError
from broker.storage.storage import open_storage
from spark_connector.loads.commit import CommitLog
from spark_connector.loads.files.directory import FilesCommitLog
from spark_connector.loads.files.zookeeper_log import ZooKeeperCommitLog
from spark_connector.loads.history import MANIFEST, LoadState
from spark_connector.loads.record import LoadError, LoadRecord
from spark_connector.loads.request import Target
from spark_connector.maintenance import history, recover, rewind
from spark_connector.offset_store.zookeeper import ZooKeeperOffsetStore
from tests.support.load_harness import World

FIRST, FORGED = "q-000001-aaaaaaaa", "q-000002-bbbbbbbb"
UP = f"q/../../../private/{FIRST}"

IDS: list[object] = [
    f"../{FIRST}",
    UP,
    f"/{FIRST}",
    f"x/{FIRST}",
    f"q\0-000001-{'a' * 8}",
    "..",
    "",
    "q-1-x",
    None,
    7,
    ["q"],
]
IDS += [f"{'q' * 300}-000001-aaaaaaaa", f"q-{'9' * 40}-aaaaaaaa", "q-٠٠٠٠٠١-aaaaaaaa"]
URLS: list[object] = [
    "file:///proc/self",
    "ftp://127.0.0.1:1/x",
    "hdfs://127.0.0.1:1/x",
    "s3://bucket/x",
    "{private}",
    "{output}/..",
    "",
]
URLS += ["{output}/../private", "http://127.0.0.1:1/", "file://{private}", "\0", None, 7]


class Place:
    """`private` beside `output`, in which the group q has loaded once."""

    def __init__(self, root: Path, open_log: Callable[[], CommitLog] | None = None) -> None:
        self.root, self.private, self.output = root, root / "private", root / "output"
        for name in (f"load={FIRST}", f"load={FORGED}", FIRST, "load=private"):
            (self.private / name).mkdir(parents=True)
            (self.private / name / "precious").write_text("precious")
        storage = open_storage(str(self.output))
        self.world = World(storage, open_log or (lambda: FilesCommitLog(storage, "q")), "q")
        self.world.grow()
        first = self.world.load()
        assert first is not None
        self.first = first

    @property
    def url(self) -> str:
        return self.world.output.url

    def around(self) -> dict[str, str]:
        """All that is outside the directory."""
        paths = (path for path in sorted(self.root.rglob("*")) if not path.is_relative_to(self.output))
        return {str(path): path.read_text() if path.is_file() else "" for path in paths}

    def filled(self, text: Any) -> Any:
        """A text of the lists above, for this place."""
        if isinstance(text, str):
            return text.replace("{private}", str(self.private)).replace("{output}", str(self.output))
        return text

    def forged(self, **fields: Any) -> dict[str, Any]:
        """A rewind that deletes the first load, as it may be stored."""
        undone = [{"load_id": self.first.load_id, "output": self.url}]
        record: dict[str, Any] = {**self.first.without_files().to_json(), "load_id": FORGED, "ranges": []}
        record["rewind"] = {"to_load": "the beginning", "undone": undone, "delete": True}
        return {**record, **fields}

    def store(self, record: Any, number: int = 2) -> None:
        """As an entry of the commit log in files, which nobody has published."""
        entry = {"version": 1, "group": "q", "sequence": number, "offsets": {"t": {"0": 3, "1": 3}}, "load": record}
        (self.output / "_offsets" / "q" / f"{number:020d}.json").write_text(json.dumps(entry))

    def run(self) -> None:
        """All that reads records. Raises what the last of it raises."""
        for act in (self.read, self.load, lambda: recover(Target(self.url, "q"))):
            with contextlib.suppress(PykafkaError):
                act()
        recover(Target(self.url, "q"))

    def read(self) -> Any:
        return history(Target(self.url, "q"))

    def load(self) -> Any:
        self.world.grow()
        return self.world.load()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(autouse=True)
def nothing_is_opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The URLs of other file systems that anybody opens."""
    opened: list[str] = []
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda url, **_: opened.append(url))
    yield opened
    assert opened == []


@pytest.mark.parametrize("load_id", IDS, ids=repr)
def test_a_rewind_with_the_id_of_no_load_is_refused(place: Place, load_id: object) -> None:
    before = place.around()
    record = place.forged()
    record["rewind"]["undone"][0]["load_id"] = load_id
    place.store(record)
    with pytest.raises(LoadError, match="is no load id|is not the record of a load"):
        place.run()
    assert place.around() == before
    assert (place.output / f"load={place.first.load_id}").is_dir()


@pytest.mark.parametrize("field", ["output", "undone"])
@pytest.mark.parametrize("url", URLS, ids=repr)
def test_a_rewind_of_another_place_is_refused(place: Place, url: object, field: str) -> None:
    before = place.around()
    record = place.forged()
    if field == "output":
        record["output"] = place.filled(url)
    else:
        record["rewind"]["undone"][0] = {"load_id": FIRST, "output": place.filled(url)}
    place.store(record)
    with pytest.raises(LoadError, match="changes nothing else|is not the record of a load"):
        place.run()
    assert place.around() == before
    assert (place.output / f"load={place.first.load_id}").is_dir(), "and nothing of the place itself, by halves"


@pytest.mark.parametrize("url", URLS, ids=repr)
def test_a_list_of_loads_opens_nothing_that_a_record_names(place: Place, url: object) -> None:
    document = {**place.first.without_files().to_json(), "load_id": FORGED, "output": place.filled(url)}
    place.store(document)
    with contextlib.suppress(LoadError):
        (_, forged) = place.read().entries
        assert (forged.state, forged.directory) == (LoadState.ELSEWHERE, None)


@pytest.mark.parametrize("load_id", [one for one in IDS if isinstance(one, str)], ids=repr)
def test_a_load_of_another_name_is_neither_published_nor_committed(place: Place, load_id: str) -> None:
    before = place.around()
    place.store(place.forged(load_id=load_id, rewind=None))
    with pytest.raises(LoadError):
        place.run()
    assert place.around() == before


@pytest.mark.parametrize("change", [{"load_id": "other-000002-bbbbbbbb"}, {"load_id": "q-000009-bbbbbbbb"}])
def test_a_record_of_another_number_or_group_is_none(place: Place, change: dict[str, Any]) -> None:
    place.store(place.forged(**change, rewind=None))
    with pytest.raises(LoadError, match="holds the record of"):
        place.run()


@pytest.mark.parametrize(
    "change",
    [
        {"output": "file:///elsewhere"},
        {"load_id": "q-000003-cccccccc"},
        {"rewind": {"to_load": "the beginning", "undone": [], "delete": True}},
    ],
)
def test_an_attempt_that_another_load_or_place_has_sealed_is_not_committed(
    place: Place, change: dict[str, Any]
) -> None:
    staged = place.output / "_staging" / "files" / FORGED / "data"
    staged.mkdir(parents=True)
    document = {**place.first.without_files().to_json(), "load_id": FORGED, **change}
    (staged / MANIFEST).write_text(json.dumps(document))
    with contextlib.suppress(LoadError):
        recover(Target(place.url, "q"))
    assert [entry.record.load_id for entry in place.read().committed] == [place.first.load_id]


def test_another_storage_is_not_opened_for_dead_letters_that_a_record_names(place: Place) -> None:
    for url in ("delta:s3://bucket/x", "delta:hdfs://127.0.0.1:1/x", "delta:ftp://127.0.0.1/x"):
        staged = place.output / "_staging" / "files" / FORGED
        staged.mkdir(parents=True, exist_ok=True)
        document = {**place.first.to_json(), "load_id": FORGED, "dead_letters": [url]}
        (staged / "intent.json").write_text(json.dumps(document))
        with pytest.raises(PykafkaError, match="which is another storage"):
            recover(Target(place.url, "q"))


def test_a_rewind_of_loads_in_two_directories_is_refused_before_it_is_committed(tmp_path: Path, zookeeper: str) -> None:
    connect = f"{zookeeper}/hostile-two"

    def open_log() -> CommitLog:
        return ZooKeeperCommitLog(ZooKeeperOffsetStore(connect), "q")

    one = Place(tmp_path / "one", open_log)
    two = World(open_storage(str(tmp_path / "two")), open_log, "q", one.world.ends)
    for _ in range(2):
        two.grow()
        assert two.load() is not None
    first, second = (Target(url, "q", "zookeeper", connect) for url in (one.url, two.output.url))
    assert [entry.state for entry in history(first).entries] == [LoadState.PUBLISHED, *[LoadState.ELSEWHERE] * 2]
    assert [entry.state for entry in history(second).entries] == [LoadState.ELSEWHERE, *[LoadState.PUBLISHED] * 2]
    with pytest.raises(PykafkaError, match="a rewind moves directories of .* only"):
        rewind(first, one.first.load_id)
    assert len(history(first).entries) == 3
    assert rewind(second, one.first.load_id) is not None, "all that it takes back is there"


@pytest.mark.parametrize("size", [100, 65 << 20])
def test_a_compressed_record_in_zookeeper_has_a_limit(zookeeper: str, size: int) -> None:
    store = ZooKeeperOffsetStore(f"{zookeeper}/hostile-{size}")
    packed = zlib.compress(b" " * size)
    store.commit("q", {}, expected={}, create={"/consumers/q/loads/0000000001": packed})
    log = ZooKeeperCommitLog(store, "q")
    with pytest.raises(LoadError, match="grows beyond" if size > 100 else "is not JSON"):
        log.newest()
    for cut in (b"", b"\xff", packed[:-2]):
        store._client.set(f"/hostile-{size}/consumers/q/loads/0000000001", cut)
        with pytest.raises(LoadError):
            log.record(1)
    log.close()


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from([*IDS, *URLS]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def _paths(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of a document that something else may stand at."""
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [at, *(path for key, value in items for path in _paths(value, (*at, key)))]


def _damaged(document: Any, path: tuple[Any, ...], junk: Any) -> Any:
    if not path:
        return junk
    changed = copy.copy(document)
    changed[path[0]] = _damaged(document[path[0]], path[1:], junk)
    return changed


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_a_stored_record_says_nothing_outside_is_touched(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    place = Place(tmp_path_factory.mktemp("hostile"))
    before, record = place.around(), place.forged()
    for _ in range(data.draw(st.integers(1, 3))):
        with contextlib.suppress(KeyError, IndexError, TypeError):
            record = _damaged(record, data.draw(st.sampled_from(_paths(record))), place.filled(data.draw(JUNK)))
    place.store(record)
    with contextlib.suppress(PykafkaError):
        place.run()
    assert place.around() == before


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_damaged_record_is_a_load_error_or_a_record_as_it_was_written(data: st.DataObject) -> None:
    record = LoadRecord.from_json(json.loads(RECORD), "here")
    document = record.to_json()
    assert LoadRecord.from_bytes(record.to_bytes(), "here") == record
    damaged = _damaged(document, data.draw(st.sampled_from(_paths(document))), data.draw(JUNK))
    try:
        read = LoadRecord.from_bytes(json.dumps(damaged).encode(), "here")
    except LoadError:
        return
    assert LoadRecord.from_bytes(read.to_bytes(), "here") == read


@pytest.mark.parametrize("data", [b"", b"[" * 100_000, b"null", b"[]", b'"x"', b"1e999", b"\xff", b'{"version": 1}'])
def test_bytes_that_are_no_record_are_a_load_error(data: bytes) -> None:
    with pytest.raises(LoadError, match="^here"):
        LoadRecord.from_bytes(data, "here")


RECORD = json.dumps(
    {
        "version": 1,
        "load_id": FORGED,
        "output": "file:///data/q",
        "format": "parquet",
        "offsets": "files",
        "created_ms": 5,
        "ranges": [
            {"topic": "t", "partition": 0, "start": 0, "end": 5, "stored": None, "rows": 5, "bad": None},
            {"topic": "t", "partition": 1, "start": 2, "end": 5, "stored": 2, "rows": None, "bad": 1},
        ],
        "rerun_of": FIRST,
        "files": [{"name": "topic=t/part-0", "size": 7}],
        "rewind": {"to_load": FIRST, "undone": [{"load_id": FIRST, "output": "file:///data/q"}], "delete": False},
        "columns": ["topic", "a.b as c"],
        "partition_by": ["topic"],
        "topic_ids": {"t": "AAAAAAAAAAAAAAAAAAAAAA"},
        "reading": {"kafka.isolation.level": "read_committed", "valueSchema": '{\n"type": "int"}'},
        "origin": {"cluster_id": "c", "bootstrap_servers": "a:1,b:2"},
        "positions": {"t": {"0": [5, -1], "1": [5, 3]}},
        "dead_letters": ["delta:/data/bad"],
        "about": FIRST,
        "upsert": {"key": ["id"], "envelope": "debezium", "order_by": None},
    }
)
