"""librdkafka's consumer in a process of its own, so that a test can pause and kill it; it tells all that happens to it.

The process commits after every batch that it was given. What it prints are lines of JSON, each with one of the fields
of `ConsumerProcess`.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition


class ConsumerProcess:
    """A member of `group` that reads `topic`, a name or a pattern that begins with `^`."""

    def __init__(self, bootstrap: str, group: str, topic: str, properties: Mapping[str, Any]) -> None:
        self.records: list[tuple[int, int]] = []
        """(partition, offset) of each, in the order of arrival."""
        self.committed: dict[int, int] = {}
        self.assigned: set[int] = set()
        self.lost: list[list[int]] = []
        """What others had already when it learnt that it had lost it."""
        self.errors: list[str] = []
        given = {"bootstrap.servers": bootstrap, "group.id": group, **properties}
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, topic, json.dumps(given)], stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """kill -9; what it has told is known after this."""
        self._process.kill()
        self._end()

    def stop(self) -> None:
        """Let it leave the group and end. May be called again."""
        self._process.terminate()
        self._end()

    def _end(self) -> None:
        self._process.wait(60)
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with contextlib.suppress(json.JSONDecodeError):  # a line that was cut off by the kill
                    for name, value in json.loads(line).items():
                        self._take(name, value)

    def _take(self, name: str, value: Any) -> None:
        if name == "records":
            self.records += [(partition, offset) for partition, offset in value]
        elif name == "committed":
            self.committed |= dict(value)
        elif name == "assigned":
            self.assigned |= set(value)
        elif name in ("revoked", "lost"):
            self.assigned -= set(value)
            if name == "lost":
                self.lost.append(value)
        else:
            self.errors.append(value)


def _tell(**what: object) -> None:
    print(json.dumps(what), flush=True)


def _after(records: Iterable[Any]) -> list[TopicPartition]:
    """The place behind the last record of each partition."""
    ends = {(one.topic(), one.partition()): one.offset() + 1 for one in records}
    return [TopicPartition(*tp, end) for tp, end in ends.items()]


def _main(topic: str, properties: dict[str, Any]) -> None:
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    defaults = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer({**defaults, **properties, "error_cb": lambda error: _tell(error=f"{error.name()}: {error}")})

    def partitions(tps: list[TopicPartition]) -> list[int]:
        return sorted(tp.partition for tp in tps)

    consumer.subscribe(
        [topic],
        on_assign=lambda _, tps: _tell(assigned=partitions(tps)),
        on_revoke=lambda _, tps: _tell(revoked=partitions(tps)),
        on_lost=lambda _, tps: _tell(lost=partitions(tps)),
    )
    while not stopped.is_set():
        found = consumer.consume(50, 0.1)
        for one in found:
            if (error := one.error()) is not None and error.code() != KafkaError._PARTITION_EOF:
                _tell(error=f"{error.name()}: {error}")
        good = [one for one in found if one.error() is None]
        if not good:
            continue
        _tell(records=[(one.partition(), one.offset()) for one in good])
        try:
            done: Any = consumer.commit(offsets=_after(good), asynchronous=False)
            _tell(committed=[(tp.partition, tp.offset) for tp in done if tp.error is None])
            for tp in done:
                if tp.error is not None:
                    _tell(error=f"commit {tp.error.name()}")
        except KafkaException as failure:
            _tell(error=f"commit {failure.args[0].name()}")
    consumer.close()


if __name__ == "__main__":
    _main(sys.argv[1], json.loads(sys.argv[2]))
