"""kafkajs (a client for Node.js that shares no code with any other), fetched by npm, as function calls.

Called by tests/compat/test_kafkajs.py. One `node` runs tests/compat/kafkajs_driver.js and holds the clients; what it is
told and what it answers are kafkajs's own objects as JSON. Fetching needs `node` and `npm` on the PATH.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.support.npm_package import node_modules, program

VERSION = "2.2.4"
DRIVER = Path(__file__).parent.parent / "compat" / "kafkajs_driver.js"


class KafkaJsError(Exception):
    """kafkajs refused or failed. `type` is Kafka's name of the error code, if it came from the broker; `causes` are
    those of an error that stands for several."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(f"{error['name']}: {error['text']}")
        self.type: str | None = error["type"]
        self.causes: list[str] = error.get("causes", [])


class KafkaJs:
    """`with KafkaJs(kafka) as js:` clients of one broker; `kafka` are kafkajs's settings of a connection.

    Raises Unavailable when node or kafkajs cannot be had. Not for two threads.
    """

    def __init__(self, kafka: Mapping[str, Any]) -> None:
        self._kafka = dict(kafka)
        self._ids = itertools.count(1)
        environment = {
            **os.environ,
            "NODE_PATH": str(node_modules("kafkajs", VERSION)),
            "KAFKAJS_NO_PARTITIONER_WARNING": "1",
        }
        self._node = subprocess.Popen(
            [program("node"), str(DRIVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The clients end with the process, without a word to the broker: close those that should say good-bye."""
        assert self._node.stdin is not None
        self._node.stdin.close()
        self._node.wait(60)
        assert self._node.stdout is not None
        self._node.stdout.close()

    def open(self, kind: str, options: Mapping[str, Any] | None = None, **kafka: Any) -> JsClient:
        """A connected "producer", "consumer" or "admin"; `kafka` replaces settings of the connection."""
        return JsClient(self, self.command("open", kind=kind, kafka={**self._kafka, **kafka}, options=options or {}))

    def command(self, command: str, **rest: Any) -> Any:
        """One command of the driver; raises KafkaJsError."""
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        message = {"id": next(self._ids), "command": command, **rest}
        self._node.stdin.write(json.dumps(message, default=_bytes_out) + "\n")
        self._node.stdin.flush()
        line = self._node.stdout.readline()
        assert line, f"node ended with {self._node.wait(10)} on {command}"
        answer = json.loads(line, object_hook=_bytes_in)
        assert answer["id"] == message["id"]
        if "error" in answer:
            raise KafkaJsError(answer["error"])
        return answer["result"]


class JsClient:
    """A producer, consumer, admin or transaction within node."""

    def __init__(self, js: KafkaJs, handle: int) -> None:
        self._js = js
        self._handle = handle

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """`client.method(...arguments)`, or with keyword arguments `client.method({options})`."""
        return self._js.command(
            "call", on=self._handle, method=method, arguments=[*arguments, *([options] if options else [])]
        )

    def transaction(self) -> JsClient:
        """A producer's next transaction: `send`, `sendOffsets`, `commit`, `abort`."""
        return JsClient(self._js, self.call("transaction"))

    def run(self, **options: Any) -> None:
        """Let a consumer run; `taken` has what it reads."""
        self._js.command("run", on=self._handle, options=options)

    def taken(self) -> dict[str, Any]:
        """Since the last call: `records`, `joined` (rebalances, with the assignment) and `crashed`, None or why."""
        found: dict[str, Any] = self._js.command("taken", on=self._handle)
        return found

    def close(self) -> None:
        """Disconnect in order: a consumer leaves its group."""
        self._js.command("close", on=self._handle)


def _bytes_out(value: object) -> dict[str, str]:
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    raise TypeError(f"{value!r} is nothing that JSON knows")


def _bytes_in(found: dict[str, Any]) -> Any:
    return base64.b64decode(found["$bytes"]) if found.keys() == {"$bytes"} else found
