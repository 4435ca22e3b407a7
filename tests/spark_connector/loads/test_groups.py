"""A group, a directory or a cluster that is not the one meant is told, and doubles nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy
from deltalake import DeltaTable, write_deltalake

from broker.errors import ConfigError
from spark_connector.destinations import open_destination
from spark_connector.errors import DataLoss
from spark_connector.load import recover as recover_from_python
from spark_connector.loads.database.sql import open_engine
from spark_connector.loads.plan import refuse_doubling_group
from spark_connector.loads.record import LoadError
from spark_connector.loads.request import Target
from spark_connector.maintenance import history, prune, recover, rewind, verify
from tests.support.broker_process import BrokerProcess
from tests.support.console import answer_of, error_of, verdict_of
from tests.support.kafka import Kafka
from tests.support.plain_loads import PlainLoads
from tests.support.table_harness import TableWorld, delta_world, sqlite_world
from tests.support.topic_data import TopicData


@pytest.fixture
def data(broker: Kafka, topic: str) -> TopicData:
    data = TopicData(broker.bootstrap, topic, partitions=1)
    data.produce(10)
    return data


def loads_of(data: TopicData, to: Path, group: str, **more: Any) -> PlainLoads:
    return PlainLoads(data.bootstrap, data.topic, to, group=group, **more)


@pytest.mark.parametrize("in_zookeeper", [False, True], ids=["files", "zookeeper"])
def test_a_misspelt_group_is_not_a_second_load_of_everything(
    data: TopicData, tmp_path: Path, zookeeper: str, in_zookeeper: bool
) -> None:
    nightly = loads_of(data, tmp_path, "nightly")
    nightly.must_load()
    data.produce(1)
    kept_in = {"zookeeper": f"{zookeeper}/groups-{data.topic}"} if in_zookeeper else {}
    with pytest.raises(ConfigError) as refused:
        loads_of(data, tmp_path, "nigthly", **kept_in).load()
    for text in ("group 'nigthly' has loaded nothing yet", data.topic, "Did you mean group 'nightly'?", "--new-group"):
        assert text in str(refused.value)
    assert len(nightly.visible()) == 10
    second = loads_of(data, tmp_path, "second", new_group=True, **kept_in)
    second.must_load()
    assert len(nightly.visible()) == 21
    data.produce(1)
    loads_of(data, tmp_path, "second", **kept_in).must_load()  # it is no new one any more
    nightly.must_load()


def test_groups_of_different_topics_share_a_directory(data: TopicData, tmp_path: Path) -> None:
    other = TopicData(data.bootstrap, f"{data.topic}-other", partitions=1)
    other.produce(1)
    loads_of(data, tmp_path, "one").must_load()
    loads_of(other, tmp_path, "two").must_load()
    with pytest.raises(ConfigError, match=f"holds loads of {data.topic}, {other.topic} by groups 'one', 'two'"):
        PlainLoads(data.bootstrap, f"{data.topic},{other.topic}", tmp_path, group="three").load()


@pytest.mark.parametrize("make", [delta_world, sqlite_world])
def test_tables_know_their_groups_too(make: Callable[..., TableWorld], tmp_path: Path) -> None:
    world = make(tmp_path)
    target = world.target
    wrong = Target(target.to, "else", format=target.format, table=target.table).check()
    with open_destination(wrong) as site:
        assert site.topics_by_group() == {world.group: {"t"}}
        refuse_doubling_group(site, "else", ["u"])
        with pytest.raises(ConfigError, match=f"holds loads of t by group '{world.group}'"):
            refuse_doubling_group(site, "else", ["t", "u"])
    with pytest.raises(ConfigError, match=f"no loads of group 'else', only of group '{world.group}'"):
        history(wrong)


def test_groups_of_a_delta_table_are_known_though_no_row_names_them(tmp_path: Path) -> None:
    """As in a table that had no column `load` when they were loaded."""
    world = delta_world(tmp_path)
    DeltaTable(world.target.to).update(updates={"load": "CAST(NULL AS VARCHAR)"})
    with open_destination(world.target) as site:
        assert site.topics_by_group() == {world.group: {"t"}}


def test_groups_of_a_delta_table_that_cannot_be_read(tmp_path: Path) -> None:
    """Its column `load` is the user's own and holds numbers; or a file is missing."""
    write_deltalake(str(tmp_path / "own"), pa.table({"topic": ["t"], "load": [5]}))
    with open_destination(Target(str(tmp_path / "own"), "g", format="delta").check()) as site:
        assert site.topics_by_group() == {}
    world = delta_world(tmp_path)
    world.output.remove(history(world.target).entries[0].record.load_id)
    other = Target(world.target.to, "other", format="delta").check()
    with pytest.raises(LoadError, match=r"the Delta table file:.*: External error"), open_destination(other) as site:
        site.topics_by_group()


def test_an_unknown_group_or_directory_ends_every_command_with_status_2(data: TopicData, tmp_path: Path) -> None:
    load_id = loads_of(data, tmp_path, "nightly").must_load()
    wrong, nowhere = Target(str(tmp_path), "nigthly"), Target(str(tmp_path / "x"), "nightly")
    calls: list[Callable[[Target], object]] = [
        history,
        recover,
        lambda target: prune(target, 1),
        lambda target: rewind(target, load_id),
        lambda target: verify(target, data.bootstrap),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match=r"no loads of group 'nigthly', only of group 'nightly'\. Did you mean"):
            call(wrong)
        with pytest.raises(ConfigError, match=r"/x holds no loads, of group 'nightly' or any other"):
            call(nowhere)
    assert not (tmp_path / "x").exists()
    words = ["--to", str(tmp_path), "--group", "nigthly"]
    for verb in ([], ["show", load_id], ["verify", "-b", data.bootstrap], ["recover"], ["prune", "--keep", "1"]):
        assert "Did you mean group 'nightly'?" in error_of("loads", *verb, *words, status=2)
    for mode in (["--verify", "-b", data.bootstrap], ["--recover"]):
        assert "Did you mean group 'nightly'?" in error_of("load", *mode, *words, status=2)
    assert "x holds no loads" in error_of("load", "--recover", "--to", nowhere.to, "--group", "nightly", status=2)
    with pytest.raises(ConfigError, match="no loads of group 'nigthly'"):
        recover_from_python(wrong)


def test_loads_of_another_cluster_are_neither_gone_on_from_nor_verified(
    data: TopicData, tmp_path: Path, broker_factory: Callable[..., BrokerProcess]
) -> None:
    other = TopicData(broker_factory().bootstrap, data.topic, partitions=1)
    other.produce(30)
    to = tmp_path / "output"
    loads = loads_of(data, to, "g")
    first = loads.must_load()
    (entry,) = history(loads.target).entries
    assert entry.record.origin is not None
    origin = f"cluster {entry.record.origin.cluster_id} ({data.bootstrap})"
    words = ["--to", str(to), "--group", "g"]
    for verb in (["loads", "verify"], ["load", "--verify"]):
        refused = error_of(*verb, "-b", other.bootstrap, *words, status=2)
        assert f"these loads are from {origin}, and {other.bootstrap} is cluster" in refused
    with pytest.raises(DataLoss) as lost:
        loads_of(other, to, "g").load()
    assert f"Load {first} was made from {origin}" in str(lost.value)
    moved = loads_of(other, to, "g", options={"failOnDataLoss": "false"})
    assert [(range.start, range.end) for range in moved.load().ranges] == [(0, 30)]
    found = verify(moved.target, other.bootstrap)
    assert [load.verdict for load in found.loads] == ["unknown", "ok"]
    assert found.loads[0].notes[-1] == f"it was loaded from {origin}, which is not this cluster"
    assert found.problems == ()
    (unread,) = found.unread
    assert f"1 of 2 loads were not checked: they are from {origin}, and {other.bootstrap} is cluster" in unread
    assert not found.ok
    for verb in (["loads", "verify"], ["load", "--verify"]):
        assert "1 of 2 loads were not checked" in verdict_of(*verb, "-b", other.bootstrap, *words, status=3)
    assert verify(moved.target, other.bootstrap, only=[found.loads[1].load_id]).ok
    assert f"from:        {origin}" in answer_of("loads", "show", first, *words)


def test_a_group_that_goes_on_in_another_directory_says_what_is_not_there(
    data: TopicData, tmp_path: Path, zookeeper: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its offsets are in ZooKeeper, so the directory gets only what is new: at first nothing at all."""
    kept_in = {"zookeeper": f"{zookeeper}/moves-{data.topic}"}
    loads_of(data, tmp_path / "old", "nightly", **kept_in).must_load()
    loads_of(data, tmp_path / "old", "nightly", **kept_in).load()
    assert not caplog.messages
    assert loads_of(data, tmp_path / "new", "nightly", **kept_in).load().rows == 0
    (told,) = caplog.messages
    assert f"the last load of {data.topic} by group 'nightly' went to file://{tmp_path}/old: this one takes" in told
    caplog.clear()
    (tmp_path / "old").rename(tmp_path / "moved")
    loads_of(data, tmp_path / "moved", "nightly", **kept_in).load()
    other = TopicData(data.bootstrap, f"{data.topic}-other", partitions=1)
    other.produce(1)
    loads_of(other, tmp_path / "new", "nightly", **kept_in).must_load()
    assert not caplog.messages, "a directory that was moved has its rows, and the other topic was loaded nowhere else"


def test_the_tables_of_a_database_share_offsets_and_know_where_the_rows_are(tmp_path: Path) -> None:
    world = sqlite_world(tmp_path)
    database = world.target.to
    with open_destination(world.target) as site:
        loads = [record for number in site.log.sequences() if (record := site.log.record(number))]
        assert site.rows_elsewhere(iter(loads)) is None
        with open_engine(world.address.url).begin() as connection:
            connection.execute(sqlalchemy.text("DROP TABLE rows"))
        assert site.rows_elsewhere(iter(loads)) == f"to {site.url}, a table that no longer exists"
    with open_destination(Target(database, world.group, table="other").check()) as other:
        assert other.rows_elsewhere(iter(loads)) == f"to {site.url}"
        assert other.rows_elsewhere(iter(())) is None
