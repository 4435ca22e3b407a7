"""A share consumer of confluent-kafka in a process of its own, which a test may kill.

`python -m tests.support.share_worker BOOTSTRAP GROUP TOPIC`: prints a line `got VALUE COUNT` for each record that it
gets, and `done VALUE` when its acknowledgement is answered without an error.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from typing import Any, Self

from tests.support.source_tree import ROOT

ANY_CLIENT = {"reconnect.backoff.max.ms": 500, "max.poll.records": 50, "share.acknowledgement.mode": "explicit"}


def main(bootstrap: str, group: str, topic: str) -> None:
    from confluent_kafka import ShareConsumer

    consumer = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group, **ANY_CLIENT})
    consumer.subscribe([topic])
    print("ready", flush=True)
    while True:
        messages = [message for message in consumer.poll(1.0) if message.error() is None]
        values = [(message.value() or b"").decode() for message in messages]
        for message, value in zip(messages, values, strict=True):
            print("got", value, message.delivery_count())
            consumer.acknowledge(message)
        sys.stdout.flush()
        if messages:
            results = consumer.commit_sync(60.0)
            failed = {tp.partition for tp, error in results.items() if error is not None}
            for message, value in zip(messages, values, strict=True):
                print("failed" if message.partition() in failed else "done", value)
            sys.stdout.flush()


class ShareWorker:
    """Runs `main` in a child process, and reads what it prints."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        command = [sys.executable, "-m", "tests.support.share_worker", bootstrap, group, topic]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
        )
        self.got: Counter[str] = Counter()
        self.done: set[str] = set()
        self.counts: list[int] = []
        """The delivery counts it saw."""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, *rest = line.split()
            if kind == "got" and len(rest) == 2:
                self.got[rest[0]] += 1
                self.counts.append(int(rest[1]))
            elif kind == "done" and rest:
                self.done.add(rest[0])

    def kill(self) -> None:
        """kill -9, and all that it printed before."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
