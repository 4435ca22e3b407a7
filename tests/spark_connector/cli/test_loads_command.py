"""`pykafka loads` as a user runs it: list, show, verify, rewind, prune, recover."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_connector.loads.record import LoadRecord
from tests.support.console import answer_of, error_of, pykafka
from tests.support.crashing import Crash
from tests.support.kafka import Kafka
from tests.support.plain_loads import PlainLoads, open_files
from tests.support.table_harness import TableWorld, delta_world, sqlite_world
from tests.support.topic_data import TopicData


@pytest.fixture
def data(broker: Kafka, topic: str) -> TopicData:
    return TopicData(broker.bootstrap, topic, partitions=2)


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")


@pytest.fixture(params=["files", "zookeeper"])
def loads(request: pytest.FixtureRequest, data: TopicData, tmp_path: Path, zookeeper: str) -> PlainLoads:
    """Two loads of 100 records each."""
    kept_in = f"{zookeeper}/console-loads" if request.param == "zookeeper" else None
    loads = PlainLoads(data.bootstrap, data.topic, tmp_path / "output", zookeeper=kept_in)
    for _ in range(2):
        data.produce(100)
        loads.must_load()
    return loads


def ids(loads: PlainLoads) -> list[str]:
    return [entry["load_id"] for entry in json.loads(answer_of("loads", "--json", *loads.words))]


def kill_before_publishing(loads: PlainLoads) -> str:
    """A load that is killed as soon as it is committed; its id."""

    def die(phase: str, record: LoadRecord | None) -> None:
        if phase == "commit":
            assert record is not None
            with open_files(loads.target) as site:
                site.log.append(record)
            raise Crash(record.load_id)

    with pytest.raises(Crash) as crash:
        loads.load(die)
    return str(crash.value)


def test_loads_are_listed_and_shown(loads: PlainLoads) -> None:
    listed = json.loads(answer_of("loads", "--json", *loads.words))
    assert [(one["state"], one["rows"], one["topics"]) for one in listed] == [("published", 100, [loads.topic])] * 2
    text = answer_of("loads", *loads.words)
    assert all(one["load_id"] in text for one in listed)
    assert listed[0]["load_id"] not in answer_of("loads", "--last", "1", *loads.words)
    shown = answer_of("loads", "show", listed[1]["load_id"], *loads.words)
    assert "rows:        100" in shown
    assert "part-0.parquet" in shown
    document = json.loads(answer_of("loads", *loads.words, "show", listed[1]["load_id"], "--json"))
    assert [file["name"] for file in document["file_list"]] == ["part-0.parquet", "part-1.parquet"]


def test_names_that_are_to_be_copied_and_numbers_are_never_broken(
    loads: PlainLoads, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_id = ids(loads)[0]
    for columns in ("80", ""):  # a narrow terminal, and behind a pipe
        monkeypatch.setenv("COLUMNS", columns)
        for words in (["loads"], ["loads", "verify", "-b", loads.bootstrap]):
            (line,) = (line for line in answer_of(*words, *loads.words).splitlines() if load_id in line)
            assert " 100 " in f"{line} "
            assert "…" not in line


def test_what_is_hidden_is_told_and_recovered(loads: PlainLoads, data: TopicData) -> None:
    data.produce(10)
    load_id = kill_before_publishing(loads)
    text = answer_of("loads", *loads.words)
    assert f"{load_id} is committed, but readers do not see it: the next load, or `pykafka load --recover`" in text
    assert answer_of("loads", "recover", *loads.words) == f"Finished {load_id}, which had been killed.\n"
    assert json.loads(answer_of("loads", "recover", "--json", *loads.words)) == {"recovered": []}
    assert loads.visible() == data.positions()


def test_a_recount_that_fails_ends_with_status_1(loads: PlainLoads) -> None:
    words = ["-b", loads.bootstrap]
    assert "2 loads with 200 rows agree" in answer_of("loads", *loads.words, "verify", *words)
    (loads.directory(ids(loads)[0]) / "part-0.parquet").unlink()
    failed = pykafka("loads", "verify", "--json", *words, *loads.words)
    assert failed.returncode == 1, failed.stderr
    document = json.loads(failed.stdout)
    assert [load["verdict"] for load in document["loads"]] == ["mismatch", "ok"]
    assert "part-0.parquet is missing" in document["loads"][0]["problems"]
    one = answer_of("loads", "verify", "--load", ids(loads)[1], *words, *loads.words)
    assert "1 load with 100 rows agrees" in one


def test_a_rewind_asks_first_and_says_what_goes_where(loads: PlainLoads, data: TopicData) -> None:
    first, second = ids(loads)
    words = ["loads", "rewind", "--to-load", first, *loads.words]
    refused = pykafka(*words, stdin=b"n\n")
    assert refused.returncode == 1
    assert f"load={second} is moved to _rewound/" in refused.stdout.decode()
    assert f"{loads.topic}-0: offset 100 becomes 50" in refused.stdout.decode()
    assert loads.visible() == data.positions()
    assert f"stands at {first} again" in answer_of(*words, stdin=b"y\n")
    assert len(loads.visible()) == 100
    loads.must_load()
    assert loads.visible() == data.positions()
    assert "with --json give --yes" in error_of(*words, "--json", status=2)
    done = json.loads(answer_of(*words, "--json", "--yes", "--delete"))
    assert done["rewind"]["delete"] is True
    assert len(loads.visible()) == 100
    assert [one["state"] for one in json.loads(answer_of("loads", "--json", *loads.words))] == [
        "published",
        "rewound",
        "rewind",
        "rewound",
        "rewind",
    ]


def test_all_loads_are_taken_back(loads: PlainLoads, data: TopicData) -> None:
    words = ["loads", "rewind", *loads.words]
    for given in ([], ["--all", "--to-load", ids(loads)[0]]):
        assert "say how far: --to-load LOAD_ID or --all" in error_of(*words, *given, status=2)
    said = answer_of(*words, "--all", stdin=b"y\n")
    assert "goes back to the beginning:" in said
    assert "stands at the beginning again" in said
    assert loads.visible() == []
    loads.must_load()
    assert loads.visible() == data.positions()


def test_old_entries_are_forgotten_and_loads_stay_in_the_list(loads: PlainLoads) -> None:
    before = ids(loads)
    assert answer_of("loads", "prune", "--keep", "1", *loads.words) == "Forgot 1 entries, 1 to 1.\n"
    assert json.loads(answer_of("loads", "prune", "--keep", "1", "--json", *loads.words)) == {"pruned": []}
    assert ids(loads) == before
    assert "2 loads with 200 rows agree" in answer_of("loads", "verify", "-b", loads.bootstrap, *loads.words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "say which loads: --to DIR and --group NAME"),
        (["--to", "x"], "say which loads"),
        (["show", "nobody", "--to", "/nowhere", "--group", "g"], "/nowhere holds no loads, of group 'g' or any other"),
        (["rewind", "--to-load", "nobody", "--yes", "--to", "/nowhere", "--group", "g"], "/nowhere holds no loads"),
        (["--to", "x", "--group", "a/b"], "group 'a/b' cannot be used"),
        (["--to", "x", "--group", "g", "--offsets", "zookeeper"], "--offsets zookeeper needs --zookeeper: host:port"),
        (["--to", "x", "--group", "g", "--hadoop", "y"], "--hadoop y: expected KEY=VALUE"),
        (["--to", "x", "--group", "g", "--hadoop", "y=z"], "--hadoop has settings of Hadoop's clients"),
        (["--to", "x", "--group", "g", "--storage-option", "y=z"], "'x' is a local directory, which takes none"),
    ],
)
def test_what_is_wrong_is_one_line(words: list[str], message: str) -> None:
    assert message in error_of("loads", *words, status=2)


@pytest.mark.parametrize("kind", ["delta", "sqlite"])
def test_loads_into_a_table_have_the_same_history(kind: str, data: TopicData, tmp_path: Path) -> None:
    world: TableWorld = delta_world(tmp_path, begin=False) if kind == "delta" else sqlite_world(tmp_path, begin=False)
    world.topic = data.topic
    for _ in range(2):
        data.produce(6)
        world.grow(count=3)
        world.load()
    target = world.target
    words = ["--to", target.to, "--group", target.group]
    words += ["--format", "delta"] if kind == "delta" else ["--table", str(target.table)]
    listed = json.loads(answer_of("loads", "--json", *words))
    assert [(one["state"], one["rows"], one["topics"]) for one in listed] == [("published", 6, [data.topic])] * 2
    assert "rows:        6" in answer_of("loads", *words, "show", listed[1]["load_id"])
    assert "2 loads with 12 rows agree" in answer_of("loads", "verify", "-b", data.bootstrap, *words)
    assert "2 loads with 12 rows agree" in answer_of("load", "--verify", "-b", data.bootstrap, *words)
    rewind = ["loads", "rewind", "--to-load", listed[0]["load_id"], *words, *(["--delete"] if kind == "sqlite" else [])]
    fate = "are deleted"
    said = answer_of(*rewind, stdin=b"y\n")
    assert listed[1]["load_id"] in said
    assert fate in said
    assert "1 load with 6 rows agrees" in answer_of("loads", "verify", "-b", data.bootstrap, *words)
    text = answer_of("loads", *words)
    assert f"rewind to {listed[0]['load_id']}" in text
    if kind == "delta":
        assert "prunes its log itself" in error_of("loads", "prune", "--keep", "1", *words, status=2)
        return
    assert answer_of("loads", "prune", "--keep", "1", *words) == "Forgot 2 entries, 1 to 2.\n"
    assert "The commit log has forgotten what loads number 1 to 2 were." in answer_of("loads", *words)
    assert [one["state"] for one in json.loads(answer_of("loads", "--json", *words))] == ["rewind"]
