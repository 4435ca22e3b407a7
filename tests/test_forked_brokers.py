"""Brokers that tests fork are as those that `python -m broker start` runs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from broker.errors import PykafkaError
from tests.support.broker_process import BrokerProcess
from tests.support.forked_brokers import ForkedProcess
from tests.support.planted import planted


def forked(broker: BrokerProcess) -> ForkedProcess:
    process: object = broker._process
    assert isinstance(process, ForkedProcess)
    return process


def test_it_has_a_session_of_its_own_and_ends_with_its_code(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, standalone=True) as broker:
        process = forked(broker)
        assert os.getsid(process.pid) == process.pid
        assert process.poll() is None
    assert process.wait() == 0


def test_it_stops_when_its_input_is_closed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, standalone=True) as broker:
        forked(broker).stdin.close()
        assert forked(broker).wait(60) == 0


def test_a_kill_is_seen(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, standalone=True) as broker:
        os.kill(forked(broker).pid, signal.SIGKILL)
        assert forked(broker).wait(60) == -signal.SIGKILL
        assert not broker.running


def test_a_wrong_setting_is_said_with_the_exit_code(tmp_path: Path) -> None:
    with pytest.raises(PykafkaError, match=r"exit code 2 at its start; .*\n.*num\.partitions"):
        BrokerProcess(tmp_path, {"num.partitions": "many"}, standalone=True).start()


def test_code_is_planted_by_an_ordinary_start(tmp_path: Path) -> None:
    with planted(tmp_path, "os:getpid"), BrokerProcess(tmp_path / "broker", standalone=True) as broker:
        assert "planted: os:getpid" in broker.output
        assert not isinstance(broker._process, ForkedProcess)
