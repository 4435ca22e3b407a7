"""Checks × ways of not being able to look: each command says `unknown` and what, and ends with 3; never ok.

Those of loads are in tests/spark_connector/loads/audit/test_unknown.py.
"""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.client.admin import Admin
from broker.client.client_settings import ClientSettings
from broker.errors import BrokerError, ErrorCode
from broker.log.inspection import check_partition
from broker.log.log_config import LogConfig
from broker.storage.storage import LocalStorage, open_storage
from broker.tools import checkup, cluster_checkup
from broker.tools.checkup import Finding
from broker.tools.cluster_checkup import look_at_cluster
from broker.verdict import Verdict
from tests.support.batches import NOW, append, batch, open_log
from tests.support.console import answer_of, error_of, verdict_of
from tests.support.kafka import Kafka
from tests.support.small_archive import SmallArchive


@pytest.mark.parametrize(
    ("problems", "unread", "verdict", "status"),
    [
        ([], [], Verdict.OK, 0),
        (["x"], [], Verdict.MISMATCH, 1),
        ([], ["x"], Verdict.UNKNOWN, 3),
        (["x"], ["y"], Verdict.MISMATCH, 1),
    ],
)
def test_a_problem_counts_for_more_than_what_is_unread(
    problems: list[str], unread: list[str], verdict: Verdict, status: int
) -> None:
    assert Verdict.of(problems, unread) is verdict
    assert verdict.exit_status == status
    assert Verdict.of_all([Verdict.OK, verdict]) is verdict
    assert Verdict.of_all([]) is Verdict.OK


class TestLogs:
    @pytest.fixture
    def partition(self, tmp_path: Path) -> Path:
        """Two segments, the first with its indexes."""
        log = open_log(tmp_path / "t-0", LogConfig(segment_bytes=150))
        for value in (b"a" * 50, b"b" * 50):
            append(log, batch(value, timestamp=NOW))
        log.close()
        assert check_partition(tmp_path / "t-0") == []
        assert len(list((tmp_path / "t-0").glob("*.log"))) == 2
        return tmp_path / "t-0"

    @pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
    def test_a_file_that_cannot_be_read_is_unknown_and_hides_no_other(self, partition: Path, suffix: str) -> None:
        path = partition / f"{0:020d}{suffix}"
        path.unlink()
        path.mkdir()  # which nobody can read as a file, root neither
        assert [(one.path, one.verdict) for one in check_partition(partition)] == [(path, Verdict.UNKNOWN)]
        (row,) = map(json.loads, verdict_of("log", "check", str(partition), "--json", status=3).splitlines())
        assert row == {"file": str(path), "position": None, "unread": "cannot be read: Is a directory"}
        said = verdict_of("log", "check", str(partition), status=3)
        assert said.endswith("0 problems in 1 partition; unknown what is in 1 file\n")
        (partition / f"{1:020d}.log").write_bytes(b"garbage")
        assert {one.verdict for one in check_partition(partition)} == {Verdict.UNKNOWN, Verdict.MISMATCH}
        verdict_of("log", "check", str(partition), status=1)

    def test_a_directory_without_the_right_to_list_it_is_not_passed_over(
        self, partition: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        denied, real = partition.parent / "t-1", os.listdir
        denied.mkdir()

        def listdir(path: Any) -> list[str]:
            if Path(path) == denied:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return real(path)

        monkeypatch.setattr(os, "listdir", listdir)
        said = verdict_of("log", "check", str(partition.parent), status=3).replace("\n", "")
        assert said.startswith(f"{denied}: cannot be read: Permission denied")
        assert "in 2 partitions" in said


class TestArchives:
    @pytest.fixture
    def archive(self, tmp_path: Path) -> SmallArchive:
        archive = SmallArchive(open_storage(str(tmp_path / "archive")), tmp_path)
        archive.add()
        archive.add()
        return archive

    def words(self, archive: SmallArchive, *more: str) -> list[str]:
        return ["log", "archive", "verify", "--archive", archive.storage.url, *more]

    @pytest.mark.parametrize("suffix", ["log", "aux"])
    def test_an_object_that_the_store_does_not_give_is_unknown(
        self, archive: SmallArchive, suffix: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only `--deep` reads it."""
        name = archive.manifest.segments[0].name
        path = archive.place.segment(name) if suffix == "log" else archive.place.aux(name)
        _fail_to_read(monkeypatch, path)
        assert json.loads(answer_of(*self.words(archive, "--json")))[0]["verdict"] == "ok"
        (report,) = json.loads(verdict_of(*self.words(archive, "--deep", "--json"), status=3))
        assert (report["verdict"], report["problems"]) == ("unknown", [])
        assert report["unread"] == [f"{path}: [Errno 13] Permission denied"]
        assert f"unknown: {path}: [Errno 13] Permission denied" in verdict_of(*self.words(archive, "--deep"), status=3)

    def test_a_manifest_that_the_store_does_not_give_is_unknown(
        self, archive: SmallArchive, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _fail_to_read(monkeypatch, archive.place.entry(0))
        (report,) = json.loads(verdict_of(*self.words(archive, "--json"), status=3))
        assert (report["verdict"], len(report["unread"])) == ("unknown", 1)

    def test_a_store_that_is_away_or_empty_is_unknown(
        self, archive: SmallArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        empty = ["log", "archive", "verify", "--archive", str(tmp_path / "elsewhere")]
        assert "unknown, nothing could be checked: the archive" in error_of(*empty, status=3)
        document = json.loads(verdict_of(*empty, "--json", status=3))
        assert document["verdict"] == "unknown"
        assert document["unread"][0].endswith("/elsewhere holds no topic")

        def away(*_: object) -> Iterator[str]:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(LocalStorage, "names", away)
        assert "Input/output error" in error_of(*self.words(archive), status=3)


def _fail_to_read(patched: pytest.MonkeyPatch, path: str) -> None:
    for name in ("read", "open_input"):
        real = getattr(LocalStorage, name)

        def read(self: Any, asked: str, *more: Any, real: Any = real, **named: Any) -> Any:
            if asked == path:
                raise PermissionError(errno.EACCES, "Permission denied")
            return real(self, asked, *more, **named)

        patched.setattr(LocalStorage, name, read)


class TestDoctor:
    def test_without_an_installation_nothing_says_which_packages_there_must_be(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(checkup, "_requirements", list)
        assert (checkup.packages().state, checkup.extras().state) == ("unknown", "unknown")
        assert checkup.packages().verdict is Verdict.UNKNOWN

    def test_what_the_machine_does_not_tell_is_unknown_and_the_status_3(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv("PYKAFKA_BOOTSTRAP_SERVER", raising=False)
        sound = [Finding("python", "ok", "x"), Finding("disk", "warning", "little")]
        monkeypatch.setattr("broker.tools.doctor.look_at_machine", lambda _: sound)
        answer_of("doctor")

        def fails(*_: object) -> Finding:
            raise OSError(errno.EIO, "Input/output error")

        unknown = checkup._seen("disk", fails)
        assert (unknown.state, unknown.says) == ("unknown", "could not be looked at: [Errno 5] Input/output error")
        monkeypatch.setattr("broker.tools.doctor.look_at_machine", lambda _: [*sound, unknown])
        assert json.loads(verdict_of("doctor", "--json", status=3))[-1]["state"] == "unknown"
        wrong = Finding("java", "error", "none")
        monkeypatch.setattr("broker.tools.doctor.look_at_machine", lambda _: [unknown, wrong])
        verdict_of("doctor", status=1)

    def test_what_a_cluster_does_not_tell_is_unknown(self, broker: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
        settings = ClientSettings.of({"bootstrap.servers": broker.bootstrap})

        def states(measure_clock: bool = False) -> dict[str, str]:
            return {one.check: one.state for one in look_at_cluster(settings, measure_clock=measure_clock)}

        def denied(*_: object, **__: object) -> None:
            raise BrokerError(ErrorCode.cluster_authorization_failed)

        monkeypatch.setattr(cluster_checkup, "_operations", lambda bits: denied())
        monkeypatch.setattr(Admin, "describe_topics", denied)
        monkeypatch.setattr(Admin, "create_topics", denied)
        found = states(measure_clock=True)
        assert {name: found[name] for name in ("partitions", "rights", "clock")} == dict.fromkeys(
            ("partitions", "rights", "clock"), "unknown"
        )
        assert states()["clock"] == "warning", "it was not asked for"

    def test_every_extra_of_the_distribution_is_known(self) -> None:
        declared = set(importlib.metadata.metadata(checkup.PACKAGE).get_all("Provides-Extra") or ())
        assert declared > checkup.FOR_DEVELOPERS
        words = set(re.findall(r"\w+", checkup.extras().says))
        assert declared - checkup.FOR_DEVELOPERS <= words
        assert {"iceberg", "protobuf", "s3", "gcs", "azure"} <= words

    @pytest.mark.parametrize(
        ("wanted", "has", "lacks"),
        [
            ("x>=2.1", "2.1.0", False),
            ("x>=2.1", "2.0.9", True),
            ("x<3,>=2.2", "3.0", True),
            ("x<3,>=2.2", "2.9.1", False),
            ("x>=1.0", "1", False),
            ("x==1.2", "1.2.0", False),
            ("x[y]>=1", "1.5", False),
            ("x>=1", None, True),
        ],
    )
    def test_both_bounds_of_a_package_are_looked_at(
        self, wanted: str, has: str | None, lacks: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(checkup, "_version_of", lambda _: has)
        assert bool(checkup._lacks([wanted])) is lacks

    def test_an_extra_whose_packages_are_there_in_another_version_is_a_warning(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(checkup, "_requirements", lambda: ["a>=1; extra == 'one'", "b<2; extra == 'two'"])
        monkeypatch.setattr(checkup, "_version_of", {"a": "1.0", "b": "2.5"}.get)
        found = checkup.extras()
        assert found.state == "warning"
        assert found.says == "installed: one; not installed: two; two has b<2 (there is 2.5)"

    def test_the_extras_of_other_packages_are_followed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """`pyspark[connect]` needs grpc, which is there or not."""
        there = {"spark": "4.0"}
        monkeypatch.setattr(checkup, "_version_of", there.get)
        monkeypatch.setattr(checkup, "_requires", lambda _: ["grpc>=1; extra == 'connect'", "y; extra == 'other'"])
        assert [one.wanted for one in checkup._lacks(["spark[connect]>=4"])] == ["spark[connect]>=4"]
        there["grpc"] = "1.2"
        assert checkup._lacks(["spark[connect]>=4"]) == []
