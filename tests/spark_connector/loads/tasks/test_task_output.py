"""Where tasks write: what is said where they cannot, on another host than the driver's."""

from __future__ import annotations

import errno
import os
import pickle
import socket
from pathlib import Path

import pytest

from spark_connector.loads.database.staged_rows import DatabaseOutput
from spark_connector.loads.iceberg.iceberg_files import IcebergOutput
from spark_connector.loads.record import LoadError
from spark_connector.loads.shared_path import SHARED
from spark_connector.loads.tasks.task_output import LocalOutput, StorageOutput, TaskOutput, told_by_tasks


def outputs(root: Path) -> list[TaskOutput]:
    """One of each kind of destination; all below a file, where nobody can make a directory."""
    below = root / "file"
    below.touch()
    return [
        StorageOutput(f"file://{below}", {}, "load"),
        IcebergOutput(f"file://{below}/data", {}),
        IcebergOutput(f"{below}/data", {}),
        DatabaseOutput(f"sqlite:///{below}/x.db", f"sqlite:///{below}/x.db#t", "staged", None),
    ]


def test_a_task_that_cannot_write_there_names_its_host_and_the_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = socket.gethostname()
    for output in map(told_by_tasks, outputs(tmp_path)):
        sent = pickle.loads(pickle.dumps(output))
        with monkeypatch.context() as patch:
            patch.setattr(socket, "gethostname", lambda: "worker-7")
            with pytest.raises(LoadError) as told:
                sent.open("part-0")
        text = str(told.value)
        assert text.startswith(f"a task on host worker-7 cannot write {sent.url_of('part-0')}: ")
        assert f"may not share this path with the driver on host {driver}. {SHARED}" in text


def test_on_the_drivers_host_the_error_is_what_it_is(tmp_path: Path) -> None:
    for output in map(told_by_tasks, outputs(tmp_path)):
        with pytest.raises(Exception, match=r".") as told:  # of whatever library writes there
            output.open("part-0")
        assert not isinstance(told.value, LoadError)


def test_a_full_disk_is_no_sign_of_another_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(StorageOutput):
        def open(self, name: str) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    output = told_by_tasks(Full(f"file://{tmp_path}", {}, "load"))
    monkeypatch.setattr(socket, "gethostname", lambda: "worker-7")
    with pytest.raises(OSError, match="No space left"):
        output.open("part-0")


def test_a_place_that_all_hosts_reach_is_left_as_it_is() -> None:
    stores: list[TaskOutput] = [StorageOutput("s3://bucket/t", {}, "load"), IcebergOutput("s3://bucket/t/data", {})]
    stores.append(DatabaseOutput("postgresql://h/db", "postgresql://h/db#t", "staged", None))
    assert [told_by_tasks(output) for output in stores] == stores
    assert not any(isinstance(told_by_tasks(output), LocalOutput) for output in stores)
