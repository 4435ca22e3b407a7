"""Kafka's small text files."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from broker.errors import ConfigError
from broker.log.checkpoints import (
    read_epochs,
    read_offsets,
    read_topic_id,
    write_epochs,
    write_offsets,
    write_topic_id,
)
from broker.log.leader_epochs import LeaderEpochs
from broker.protocol.topic_partition import TopicPartition


def test_offsets_are_written_as_kafka_writes_them(tmp_path: Path) -> None:
    offsets = {TopicPartition("b", 1): 7, TopicPartition("a.b-c", 0): 0}
    write_offsets(tmp_path / "c", offsets)
    assert (tmp_path / "c").read_text() == "0\n2\na.b-c 0 0\nb 1 7\n"
    assert read_offsets(tmp_path / "c") == offsets


def test_epochs_are_written_as_kafka_writes_them(tmp_path: Path) -> None:
    write_epochs(tmp_path / "c", [(0, 0), (4, 1200)])
    assert (tmp_path / "c").read_text() == "0\n2\n0 0\n4 1200\n"
    assert read_epochs(tmp_path / "c") == [(0, 0), (4, 1200)]


def test_the_topic_id_is_written_as_kafka_writes_it(tmp_path: Path) -> None:
    topic_id = uuid.UUID("8a6bb2c4-52a1-4a8e-ae4c-dd1d4bd3fbf9")
    write_topic_id(tmp_path / "m", topic_id)
    assert (tmp_path / "m").read_text() == "version: 0\ntopic_id: imuyxFKhSo6uTN0dS9P7-Q\n"
    assert read_topic_id(tmp_path / "m") == topic_id


def test_a_missing_file_is_empty(tmp_path: Path) -> None:
    assert read_offsets(tmp_path / "none") == {}
    assert read_epochs(tmp_path / "none") == []
    assert read_topic_id(tmp_path / "none") is None


@pytest.mark.parametrize("text", ["", "0\n", "1\n0\n", "0\n2\nt 0 1\n", "0\n1\nt 0\n", "0\n1\nt 0 x\n", "0\n1\nt\n"])
def test_a_broken_checkpoint_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "some-checkpoint"
    path.write_text(text)
    with pytest.raises(ConfigError, match="some-checkpoint"):
        read_offsets(path)


@pytest.mark.parametrize("text", ["", "version: 0\n", "version: 0\ntopic_id: x\n"])
def test_a_broken_topic_id_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "partition.metadata"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"partition\.metadata"):
        read_topic_id(path)


class TestLeaderEpochs:
    @pytest.fixture
    def epochs(self, tmp_path: Path) -> LeaderEpochs:
        epochs = LeaderEpochs(tmp_path / "epochs")
        for epoch, start in [(2, 0), (3, 10), (7, 25)]:
            epochs.assign(epoch, start)
        epochs.save()
        return epochs

    @pytest.mark.parametrize(
        ("asked", "answer"),
        [(-1, (-1, -1)), (1, (1, 0)), (2, (2, 10)), (3, (3, 25)), (5, (3, 25)), (7, (7, 40)), (8, (-1, -1))],
    )
    def test_end_offset(self, epochs: LeaderEpochs, asked: int, answer: tuple[int, int]) -> None:
        assert epochs.end_offset(asked, 7, 40) == answer

    @pytest.mark.parametrize(
        ("asked", "answer"), [(-1, (-1, -1)), (3, (3, 25)), (7, (7, 40)), (8, (7, 40)), (9, (9, 40)), (10, (-1, -1))]
    )
    def test_end_offset_before_the_leader_has_appended(
        self, epochs: LeaderEpochs, asked: int, answer: tuple[int, int]
    ) -> None:
        assert epochs.end_offset(asked, 9, 40) == answer

    @pytest.mark.parametrize(("asked", "answer"), [(-1, (-1, -1)), (3, (3, 0)), (4, (4, 0)), (5, (-1, -1))])
    def test_end_offset_of_an_empty_log(self, tmp_path: Path, asked: int, answer: tuple[int, int]) -> None:
        assert LeaderEpochs(tmp_path / "none").end_offset(asked, 4, 0) == answer

    @pytest.mark.parametrize(("offset", "epoch"), [(0, 2), (9, 2), (10, 3), (24, 3), (25, 7), (99, 7)])
    def test_epoch_of_a_record(self, epochs: LeaderEpochs, offset: int, epoch: int) -> None:
        assert epochs.epoch_of(offset) == epoch

    def test_there_is_no_epoch_before_the_first(self, epochs: LeaderEpochs) -> None:
        epochs.truncate_from_start(12)
        assert epochs.epoch_of(11) == -1

    def test_a_known_epoch_is_not_assigned_again(self, epochs: LeaderEpochs) -> None:
        epochs.assign(7, 30)
        epochs.assign(4, 30)
        assert epochs.entries == [(2, 0), (3, 10), (7, 25)]

    @pytest.mark.parametrize(("offset", "left"), [(0, []), (10, [(2, 0)]), (11, [(2, 0), (3, 10)])])
    def test_truncated_from_the_end(self, epochs: LeaderEpochs, offset: int, left: list[tuple[int, int]]) -> None:
        epochs.truncate_from_end(offset)
        assert epochs.entries == left

    @pytest.mark.parametrize(
        ("offset", "left"), [(0, [(2, 0), (3, 10), (7, 25)]), (12, [(3, 12), (7, 25)]), (90, [(7, 90)])]
    )
    def test_truncated_from_the_start(self, epochs: LeaderEpochs, offset: int, left: list[tuple[int, int]]) -> None:
        epochs.truncate_from_start(offset)
        assert epochs.entries == left

    def test_a_restart_knows_them(self, epochs: LeaderEpochs, tmp_path: Path) -> None:
        assert LeaderEpochs(tmp_path / "epochs").entries == epochs.entries
