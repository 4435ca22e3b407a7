"""A database as the destination of loads: which rows count, who may meddle, which tables are refused."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy

from broker.errors import ConfigError
from spark_connector.destinations import open_destination
from spark_connector.loads.addresses import DatabaseAddress
from spark_connector.loads.database.database_table import DatabaseDestination, open_database
from spark_connector.loads.database.sql import ATTEMPT, open_engine
from spark_connector.loads.database.staged_rows import StagedRows
from spark_connector.loads.footers import Count
from spark_connector.loads.record import LoadError, LoadInterrupted
from spark_connector.loads.request import Target
from spark_connector.loads.tasks.file_writer import FileWriter
from spark_connector.loads.tasks.written_file import WrittenFile
from spark_connector.offset_store.base import OffsetConflict
from tests.support.crashing import CrashPoint
from tests.support.postgres import Postgres
from tests.support.requirements import Unavailable, give_up
from tests.support.table_harness import DatabaseWorld, begun, check_whole, layout_of, rows_of, sqlite_world

_counter = itertools.count()


@pytest.fixture
def sqlite(tmp_path: Path) -> DatabaseWorld:
    return sqlite_world(tmp_path)


def test_rows_of_attempts_that_did_not_count_stay_out(sqlite: DatabaseWorld) -> None:
    sqlite.load()  # the harness leaves such an attempt in every load
    assert sqlite.visible() == sqlite.produced()


def test_a_database_without_zones_has_times_as_the_session_shows_them(sqlite: DatabaseWorld) -> None:
    with sqlite.opened(CrashPoint()) as site:
        record = sqlite.plan(site)
        assert record is not None
        layout = replace(site.file_layout(record, layout_of(record)), time_zone="Europe/Berlin")
        writer = FileWriter(layout, site.task_output(site.stage(record)))
        writer.write(rows_of(record.ranges[0]))
        writer.close()
        (name,) = (name for name in site.staged() if not name.endswith("_won"))
    with open_engine(sqlite.address.url).connect() as connection:
        found = connection.execute(sqlalchemy.text(f"SELECT min(timestamp) FROM {name}")).scalar_one()
    assert found == "2023-11-14 23:13:20.000003"


def test_rows_that_the_driver_does_not_see_are_not_counted(sqlite: DatabaseWorld) -> None:
    """As those in the files of SQLite that executors on other hosts have written."""
    with sqlite.opened(CrashPoint()) as site:
        record = sqlite.plan(site)
        assert record is not None
        site.file_layout(record, layout_of(record))
        elsewhere = WrittenFile("f" * 32, 0, b"", (Count("t", 0, 3, 0, 2),), {}, host="far", held=3)
        with pytest.raises(LoadError, match="a task on host far has staged 3 rows for .* the driver finds 0 of them"):
            site.gather(site.stage(record), [elsewhere])


def test_rows_that_vanished_before_the_commit_stop_it(sqlite: DatabaseWorld) -> None:
    """As those of an unlogged table do in a crash of PostgreSQL."""

    def vanish() -> None:
        engine = open_engine(sqlite.address.url)
        (name, *_) = [name for name in sqlite.leftovers() if not name.endswith("_won")]
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text(f"DELETE FROM {name} WHERE {ATTEMPT} IS NOT NULL"))

    with sqlite.opened(CrashPoint()) as site:
        record = sqlite.plan(site)
        assert record is not None
        place = site.stage(record)
        sealed, _ = sqlite.write(site, record, place)
        vanish()
        with pytest.raises(LoadInterrupted, match="6 rows were staged and counted, but 0 are there now"):
            site.commit(sealed)
        assert site.log.newest().sequence == 1
    sqlite.load()
    check_whole(sqlite)


def test_offsets_set_by_another_program_void_a_load(sqlite: DatabaseWorld) -> None:
    def meddle() -> None:
        with open_engine(sqlite.address.url).begin() as connection:
            connection.execute(sqlalchemy.text("UPDATE pykafka_offsets SET next_offset = 4"))

    with pytest.raises(OffsetConflict, match=r"t-0: the offset in sqlite:.*rows is no longer 3"):
        sqlite.load(CrashPoint(1, before=True, meanwhile=meddle))
    assert sqlite.leftovers() == []


def test_a_number_that_was_pruned_is_not_free(sqlite: DatabaseWorld) -> None:
    with sqlite.opened(CrashPoint()) as site:
        record = sqlite.plan(site)
        assert record is not None
        for _ in range(3):
            sqlite.load()
            sqlite.grow()
        assert site.log.prune(1) == [1, 2, 3]
        with pytest.raises(OffsetConflict):
            site.log.append(record)


def test_pruning_keeps_the_newest(sqlite: DatabaseWorld) -> None:
    sqlite.load()
    sqlite.grow()
    sqlite.load()
    with sqlite.opened(CrashPoint()) as site:
        assert site.log.prune(1) == [1, 2]
        assert site.log.sequences() == [3]
    sqlite.grow()
    sqlite.load()
    check_whole(sqlite)


def test_an_answer_that_was_lost_on_the_way_is_looked_up(sqlite: DatabaseWorld) -> None:
    losses = iter([True])

    def lose(connection: sqlalchemy.Connection) -> None:
        if next(losses, False):
            connection.connection.commit()  # it got there; what comes back is an error
            raise sqlalchemy.exc.OperationalError("COMMIT", {}, Exception("server closed the connection"))

    with sqlite.opened(CrashPoint()) as site:
        record = sqlite.plan(site)
        assert record is not None
        place = site.stage(record)
        sealed, _ = sqlite.write(site, record, place)
        sqlalchemy.event.listen(site.log._engine, "commit", lose)
        site.commit(sealed)
    check_whole(sqlite)


def test_a_table_with_more_columns_takes_rows(tmp_path: Path) -> None:
    address = DatabaseAddress.parse(f"sqlite:///{tmp_path}/x.db", "rows")
    with open_engine(address.url).begin() as connection:
        connection.execute(
            sqlalchemy.text(
                "CREATE TABLE rows (id INTEGER PRIMARY KEY, value BLOB, topic TEXT, partition INTEGER, "
                '"offset" BIGINT, timestamp DATETIME, load VARCHAR(255))'
            )
        )
    world = begun(DatabaseWorld(address, "g"))
    world.load()
    check_whole(world)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("value BLOB, topic TEXT, load TEXT", "has no column partition, offset, timestamp"),
        ("value BLOB, topic TEXT", r"has no column load, in which a load writes its id .*ADD COLUMN load VARCHAR"),
        (
            "value BLOB, topic TEXT, load INTEGER",
            "a column load of its own, of type INTEGER: .* Rename that column",
        ),
        (
            "value BLOB, topic TEXT, load VARCHAR(16)",
            r"column load is VARCHAR\(16\), which would pad or cut 'g-000001-",
        ),
        ("value BLOB, topic TEXT, load CHAR(255)", r"column load is CHAR\(255\), which would pad or cut"),
        (
            'value BLOB, topic TEXT, partition INTEGER, "offset" TEXT, timestamp DATETIME, load TEXT',
            "column offset is TEXT there, by which a load cannot count its rows",
        ),
        (
            'value TEXT, topic TEXT, partition INTEGER, "offset" BIGINT, timestamp DATETIME, load TEXT',
            "column value is to be loaded as bytes, but is TEXT there",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path: Path, columns: str, message: str) -> None:
    address = DatabaseAddress.parse(f"sqlite:///{tmp_path}/x.db", "rows")
    with open_engine(address.url).begin() as connection:
        connection.execute(sqlalchemy.text(f"CREATE TABLE rows ({columns})"))
    world = DatabaseWorld(address, "g")
    world.grow()
    with pytest.raises(ConfigError, match=message):
        world.load()


def test_nothing_there_is_one_clear_error() -> None:
    address = DatabaseAddress.parse("postgresql+psycopg://u:secret@127.0.0.1:1/db", "rows")
    with pytest.raises(LoadInterrupted, match="cannot connect to postgresql") as caught:
        open_database(address, "g")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["nonsense://x/y", "postgresql+nonsense://x/y", "mysql://x/y"])
def test_a_driver_that_is_not_there_is_a_wrong_setting(url: str) -> None:
    with pytest.raises(ConfigError):
        open_database(DatabaseAddress.parse(url, "rows"), "g")


def test_a_schema_of_postgresql(postgres: str) -> None:
    with open_engine(postgres).begin() as connection:
        connection.execute(sqlalchemy.text("CREATE SCHEMA IF NOT EXISTS apart"))
    world = DatabaseWorld(DatabaseAddress.parse(postgres, f"apart.rows_{next(_counter)}"), f"g{next(_counter)}")
    world.grow()
    record = world.load()
    assert record is not None
    assert record.rows == 6
    with open_engine(postgres).connect() as connection:
        name = f"apart.{world.address.table}"
        assert connection.execute(sqlalchemy.text(f"SELECT count(*) FROM {name}")).scalar_one() == 6
    assert world.leftovers() == []


def test_what_the_database_says_later_on_is_plain_too(tmp_path: Path) -> None:
    target = Target(f"sqlite:///{tmp_path}/x.db", "g", table="rows").check()

    def go_away() -> None:
        with open_destination(target) as site:
            (tmp_path / "x.db").write_bytes(b"no database" * 1000)
            site.log.newest()

    with pytest.raises(LoadError, match=r"sqlite:.*x\.db#rows: file is not a database"):
        go_away()
    (tmp_path / "y.db").mkdir()
    with pytest.raises(LoadError, match="cannot connect to .*unable to open") as caught:
        open_database(DatabaseAddress.parse(f"sqlite:///{tmp_path}/y.db", "rows"), "g")
    assert not caught.value.retriable, "a directory in the place of the file"


def test_a_commit_that_fails_leaves_no_copy_of_the_rows(sqlite: DatabaseWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service would stage another one with every try."""

    def fill_the_disk(*_arguments: object) -> None:
        raise sqlalchemy.exc.OperationalError("INSERT", {}, Exception("No space left on device"))

    with monkeypatch.context() as patch:
        patch.setattr(DatabaseDestination, "_insert", fill_the_disk)
        with pytest.raises(LoadInterrupted, match="No space left"):
            sqlite.load()
    assert sqlite.leftovers() == []
    sqlite.load()
    check_whole(sqlite)


def test_a_value_that_does_not_fit_is_no_outage(postgres: str, tmp_path: Path) -> None:
    """The next try would meet it again, and a service would try for ever."""
    beyond = pa.array([2**60], pa.timestamp("us", "UTC"))
    for url, column, said in (
        (postgres, pa.array(["a\0b"]), "0x00"),
        (f"sqlite:///{tmp_path}/x.db", beyond, "out of range"),
    ):
        name = f"unfit_{next(_counter)}"
        kind = sqlalchemy.DateTime() if column is beyond else sqlalchemy.Text()
        columns = (sqlalchemy.Column("c", kind), sqlalchemy.Column(ATTEMPT, sqlalchemy.String(32)))
        sqlalchemy.Table(name, sqlalchemy.MetaData(), *columns).create(open_engine(url))
        rows = StagedRows(open_engine(url), name, None, "attempt")
        with pytest.raises(LoadError, match=f"does not fit into the table: .*{said}") as caught:
            rows.insert(pa.record_batch([column], names=["c"]))
        rows.close()
        assert not caught.value.retriable


def test_a_server_that_goes_away_while_rows_are_written_is_an_outage() -> None:
    """Whatever the load asks it then: a service waits for it."""
    try:
        server = Postgres()
        url = server.start()
    except Unavailable as error:
        give_up(str(error))

    def load() -> None:
        with open_destination(Target(url, "g", table="rows").check()) as site:
            server.stop()
            site.log.newest()

    with pytest.raises(LoadInterrupted, match="rows: .*connection"):
        load()
