"""A rival between two looks at the commit log: planning and rewinding see one state of it, or do not commit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.storage import storage
from spark_connector.load import run_load
from spark_connector.loads.destination import Destination
from spark_connector.loads.files.directory import FilesCommitLog, FilesDestination
from spark_connector.loads.plan import next_number
from spark_connector.loads.record import LoadRecord
from spark_connector.loads.request import LoadRequest, Target
from spark_connector.maintenance import rewind
from spark_connector.offset_store.base import OffsetConflict
from tests.support.crashing import Crash
from tests.support.plain_loads import PlainLoads
from tests.support.topic_data import TopicData


def loads_of(data: TopicData, to: Path) -> PlainLoads:
    return PlainLoads(data.bootstrap, data.topic, to)


def once_after(patch: pytest.MonkeyPatch, owner: type, name: str, act: Callable[[], object]) -> None:
    """`act` comes right after the next call of this method has looked."""
    look = getattr(owner, name)

    def looked(self: Any, *arguments: Any) -> Any:
        found = look(self, *arguments)
        patch.undo()
        act()
        return found

    patch.setattr(owner, name, looked)


def when_planned(patch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """`act` comes as soon as a rewind has the number that it will commit under."""

    def looked(destination: Destination) -> int:
        number = next_number(destination)
        act()
        return number

    patch.setattr("spark_connector.maintenance.next_number", looked)


@pytest.mark.parametrize("loaded", [True, False], ids=["later", "first"])
@pytest.mark.parametrize("look", ["offsets", "newest", "sequences"])
def test_a_load_that_comes_while_another_plans_doubles_nothing(
    data: TopicData, tmp_path: Path, look: str, loaded: bool
) -> None:
    loads, rival = loads_of(data, tmp_path), loads_of(data, tmp_path)
    if loaded:
        loads.must_load()
        data.produce(20)
    patch = pytest.MonkeyPatch()

    def begin(phase: str, _: LoadRecord | None) -> None:
        if phase == "plan":
            once_after(patch, FilesCommitLog, look, rival.must_load)

    with contextlib.suppress(OffsetConflict):
        loads.load(begin)
    assert loads.visible() == data.positions()


def _no_spark() -> Any:
    raise AssertionError("so small a load needs no Spark")


@pytest.mark.parametrize("format", ["parquet", "delta"])
def test_a_load_whose_files_a_rival_removes_while_they_are_synced_is_overtaken(
    data: TopicData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    target = Target(str(tmp_path / "out"), f"g-{data.topic}", format=format)
    request = LoadRequest.build(target, bootstrap_servers=data.bootstrap, topic=data.topic)
    sync, rivals = storage._sync, [True]

    def synced(path: str) -> None:
        if path.endswith(".parquet") and rivals and rivals.pop():
            run_load(request, _no_spark, lambda phase, record: None)
        sync(path)

    monkeypatch.setattr(storage, "_sync", synced)
    with pytest.raises(OffsetConflict, match="another load committed number 1"):
        run_load(request, _no_spark, lambda phase, record: None)
    assert not rivals


@pytest.mark.parametrize("kind", ["files", "zookeeper"])
def test_a_load_whose_rival_was_killed_before_it_showed_its_rows_loses_none(
    request: pytest.FixtureRequest, data: TopicData, tmp_path: Path, kind: str
) -> None:
    zookeeper = None if kind == "files" else request.getfixturevalue("zookeeper")
    loads, rival = (PlainLoads(data.bootstrap, data.topic, tmp_path, zookeeper=zookeeper) for _ in range(2))

    def kill_rival(phase: str, _: LoadRecord | None) -> None:
        if phase == "plan":
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(FilesDestination, "_publish", killed)
                with pytest.raises(Crash):
                    rival.load()
            data.produce(20)

    loads.load(kill_rival)
    assert loads.visible() == data.positions()


@pytest.mark.parametrize(
    ("owner", "look"), [(FilesDestination, "history"), (FilesCommitLog, "offsets"), (FilesCommitLog, "records")]
)
def test_a_load_that_comes_while_a_rewind_is_planned_is_not_left_behind(
    data: TopicData, tmp_path: Path, owner: type, look: str
) -> None:
    loads, rival = loads_of(data, tmp_path), loads_of(data, tmp_path)
    first = loads.must_load()
    data.produce(20)
    loads.must_load()
    data.produce(20)
    with pytest.MonkeyPatch.context() as patch:
        when_planned(patch, lambda: once_after(patch, owner, look, rival.must_load))
        with pytest.raises(OffsetConflict):
            rewind(loads.target, first)
    loads.load()
    assert loads.visible() == data.positions()


@pytest.mark.parametrize(("owner", "look"), [(FilesDestination, "history"), (FilesCommitLog, "records")])
def test_a_load_that_comes_before_a_rewind_is_planned_is_taken_back(
    data: TopicData, tmp_path: Path, owner: type, look: str
) -> None:
    """These looks also come first when killed loads are finished, before the rewind has its number."""
    loads, rival = loads_of(data, tmp_path), loads_of(data, tmp_path)
    first = loads.must_load()
    data.produce(20)
    undone = [loads.must_load()]
    data.produce(20)
    with pytest.MonkeyPatch.context() as patch:
        once_after(patch, owner, look, lambda: undone.append(rival.must_load()))
        plan = rewind(loads.target, first)
    assert plan is not None
    assert plan.rewind is not None
    assert [load.load_id for load in plan.rewind.undone] == undone
    loads.load()
    assert loads.visible() == data.positions()


def killed(*_: object) -> None:
    raise Crash
