"""What a list of loads says of each: published, hidden, gone, running, killed, void, taken back, pruned, unknown."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import open_storage
from spark_connector.loads.files.directory import FilesCommitLog
from spark_connector.loads.history import MANIFEST, HistoryEntry, LoadState, Owner, intent_of, owner_of
from spark_connector.loads.record import LoadRecord
from spark_connector.loads.request import Target
from spark_connector.maintenance import history, prune, rewind
from spark_connector.offset_store.base import OffsetConflict
from spark_connector.offset_store.files import FilesOffsetStore
from tests.support.crashing import Crash, CrashPoint
from tests.support.load_harness import World

NOBODY = 2**22 + 1  # beyond the largest pid of Linux


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two loads, and new data."""
    output = open_storage(str(tmp_path / "output"))
    world = World(output, lambda: FilesCommitLog(output, "g"), "g")
    for _ in range(2):
        world.grow()
        assert world.load() is not None
    world.grow()
    return world


def entries(world: World) -> list[HistoryEntry]:
    return history(Target(world.output.url, "g")).entries


def states(world: World) -> list[LoadState]:
    return [entry.state for entry in entries(world)]


def ids(world: World) -> list[str]:
    return [entry.record.load_id for entry in entries(world)]


def crash_at(world: World, is_step: Callable[[str], bool], *, before: bool) -> None:
    """A load that is killed before or after the first step of that kind."""
    for number in range(1, 20):
        probe = CrashPoint(number, before=before)
        copy = Path(f"{world.output.url.removeprefix('file://')}.copy")
        shutil.copytree(world.output.url.removeprefix("file://"), copy)
        with pytest.raises(Crash):
            world.load(probe)
        if is_step(probe.steps[-1]):
            shutil.rmtree(copy)
            return
        shutil.rmtree(world.output.url.removeprefix("file://"))
        copy.rename(world.output.url.removeprefix("file://"))


def test_published_loads_are_listed_in_order_with_what_they_hold(world: World) -> None:
    first, second = entries(world)
    assert [first.state, second.state] == [LoadState.PUBLISHED] * 2
    assert (first.record.id.sequence, second.record.id.sequence) == (1, 2)
    assert (first.record.rows, first.topics) == (6, ["t"])
    assert first.files is not None
    assert first.bytes == sum(file.size for file in first.files) > 0
    document = json.loads(json.dumps(first.to_json()))
    assert (document["state"], document["rows"], document["files"]) == ("published", 6, 2)


def test_a_load_that_is_committed_but_hidden_is_said_to_be(world: World) -> None:
    crash_at(world, lambda step: step.startswith("append"), before=False)
    assert states(world) == [LoadState.PUBLISHED, LoadState.PUBLISHED, LoadState.HIDDEN]
    hidden = entries(world)[2]
    assert hidden.directory is not None
    assert hidden.files is not None


def test_staged_loads_are_told_apart(world: World) -> None:
    crash_at(world, lambda step: step.endswith(MANIFEST), before=False)
    assert states(world)[2:] == [LoadState.SEALED]
    log = world.open_log()
    for owner, number, state in (
        (Owner.this_process(), 4, LoadState.RUNNING),
        (Owner(Owner.this_process().host, NOBODY), 5, LoadState.DEAD),
        (Owner("elsewhere.example", 1), 6, LoadState.UNFINISHED),
        (Owner.this_process(), 1, LoadState.VOID),
    ):
        record = world._plan(log)
        assert record is not None
        load_id = f"g-{number:06d}-0000000{number}"
        document = {**json.loads(intent_of(record)), "load_id": load_id}
        document["owner"] = {"host": owner.host, "pid": owner.pid, "started": owner.started}
        world.output.create(f"_staging/files/{load_id}/intent.json", json.dumps(document).encode())
        (found,) = (entry for entry in entries(world) if entry.record.load_id == load_id)
        assert found.state is state


def test_an_intent_names_its_owner_and_old_ones_do_not(world: World) -> None:
    record = world._plan(world.open_log())
    assert record is not None
    owner = owner_of(intent_of(record))
    assert owner == Owner.this_process()
    assert owner.is_alive()
    assert Owner(owner.host, owner.pid, (owner.started or 0) + 1).is_alive() is False, "another process, the same pid"
    assert owner_of(record.to_bytes()) is None
    assert owner_of(b"nonsense") is None


def test_a_directory_that_is_gone_and_one_of_nobody_are_said_to_be(world: World) -> None:
    first = ids(world)[0]
    world.output.remove(f"load={first}")
    assert states(world) == [LoadState.ABSENT, LoadState.PUBLISHED]
    world.output.create("load=g-000009-0000000a/part", b"")
    assert states(world)[-1] is LoadState.UNKNOWN
    world.output.create("load=other-000009-0000000a/part", b"")
    assert len(entries(world)) == 3, "loads of another group are none of ours"


def test_history_outlives_pruning_and_rewinding(world: World) -> None:
    first, second = ids(world)
    target = Target(world.output.url, "g")
    plan = rewind(target, first)
    assert plan is not None
    assert states(world) == [LoadState.PUBLISHED, LoadState.REWOUND, LoadState.REWIND]
    assert prune(target, 1) == [1, 2]
    assert ids(world) == [first, second, plan.load_id]
    assert states(world) == [LoadState.PUBLISHED, LoadState.REWOUND, LoadState.REWIND]
    assert entries(world)[0].record.rows == 6
    third = world.load()
    assert third is not None
    assert prune(target, 1) == [3]
    assert states(world) == [LoadState.PUBLISHED, LoadState.REWOUND, LoadState.REWIND, LoadState.PUBLISHED]
    assert rewind(target, first) is not None, "manifests stand in for what was pruned"
    world.load()
    assert world.visible() == world.produced()


def test_a_stream_of_the_same_group_takes_no_load_out_of_the_history(world: World) -> None:
    target, log = Target(world.output.url, "g"), FilesCommitLog(world.output, "g")
    stream = FilesOffsetStore(world.output.below("_offsets"))

    def commit_often() -> None:
        for offset in range(150):
            stream.commit("g", {TopicPartition("stream", 0): log.newest().sequence + offset})

    first, _ = ids(world)
    crash_at(world, lambda step: step.startswith("append"), before=False)  # committed, but hidden
    hidden = entries(world)[-1].record
    commit_often()
    slept = LoadRecord("g-000004-0000abcd", world.output.url, "json", "files", 0, ())
    with pytest.raises(OffsetConflict, match="has been pruned"):
        log.append(slept)  # its number, behind the hidden load's, is taken although its entry is gone
    assert world.load() is None, "it publishes the hidden load"
    world.grow()
    last = world.load()
    assert last is not None
    commit_often()
    found = history(target)
    assert [entry.state for entry in found.entries] == [LoadState.PUBLISHED] * 4
    assert [entry.record.load_id for entry in found.entries][2:] == [hidden.load_id, last.load_id]
    assert found.forgotten == ()
    assert world.visible() == world.committed() == world.produced()
    assert rewind(target, first) is not None
    assert len(world.visible()) == 6
    prune(target, 1)
    assert not [name for name in world.output.names("_offsets/g") if name.endswith(".noted")]


def test_a_rewind_is_refused_where_history_is_torn(world: World) -> None:
    target = Target(world.output.url, "g")
    first = ids(world)[0]
    world.load()
    assert prune(target, 1) == [1, 2]
    (second,) = (id for id in ids(world) if "-000002-" in id)
    world.output.remove(f"load={second}")
    with pytest.raises(ValueError, match="load number 2 has been pruned"):
        rewind(target, first)


def test_a_rewind_that_is_not_confirmed_changes_nothing(world: World) -> None:
    target = Target(world.output.url, "g")
    before = world.visible()
    assert rewind(target, ids(world)[0], confirm=lambda plan: False) is None
    assert world.visible() == before
    assert states(world) == [LoadState.PUBLISHED] * 2


def test_a_load_between_the_question_and_the_answer_wins(world: World) -> None:
    target = Target(world.output.url, "g")

    def answer_late(_plan: object) -> bool:
        world.load()
        return True

    with pytest.raises(OffsetConflict):
        rewind(target, ids(world)[0], confirm=answer_late)
    assert world.visible() == world.produced()


def test_keeping_nothing_is_refused(world: World) -> None:
    with pytest.raises(ValueError, match="keep .* must be at least 1"):
        prune(Target(world.output.url, "g"), 0)
