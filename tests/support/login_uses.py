"""What people do with a Kafka that they must log in to: USES, each done with every login of logins.py.

A use takes a `Use`, does its work with the login, and asserts what came of it by a super user's eyes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from deltalake import DeltaTable

from broker.client.client_settings import ClientSettings
from broker.tools.client_options import client_settings
from pykafka_ui.access import Credentials
from pykafka_ui.app import make_app
from pykafka_ui.console import Console
from pykafka_ui.records.values import Decoder
from spark_connector.load import load
from tests.support.all_available import take_all
from tests.support.committed_records import committed_values
from tests.support.console import answer_of
from tests.support.logins import LOGINS, Login
from tests.support.markdown_table import table
from tests.support.topics import Topic
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 20
"""In the topic that is read, numbers from 0 on."""


@dataclasses.dataclass
class Use:
    client: Mapping[str, str]
    """The properties of who logs in."""
    options: Mapping[str, str]
    """Of the connector, besides."""
    topic: Topic
    """Made by a super user."""
    group: str
    directory: Path
    spark: SparkSession
    target: str
    """Another cluster, without logins."""

    @property
    def read_options(self) -> dict[str, str]:
        return {"subscribe": self.topic.name, "startingOffsets": "earliest", **self.kafka_options}

    @property
    def kafka_options(self) -> dict[str, str]:
        return {**{f"kafka.{name}": text for name, text in self.client.items()}, **self.options}

    @property
    def file(self) -> Path:
        """The same as a properties file."""
        found = self.directory / "client.properties"
        found.write_text("".join(f"{name}={text}\n" for name, text in self.client.items()))
        return found


def batch(use: Use) -> None:
    rows = use.spark.read.format("pykafka").options(**use.read_options).load().select("value").collect()
    assert sorted(int(bytes(row.value)) for row in rows) == list(range(RECORDS))


def stream(use: Use) -> None:
    """Once, and again from the checkpoint when there is more; offsets are committed to a group, too."""
    more = {"offsetStore": "group", "group": use.group}
    rows = use.spark.readStream.format("pykafka").options(**use.read_options, **more).load().select("value")
    written = rows.writeStream.format("parquet").option("checkpointLocation", str(use.directory / "checkpoint"))
    for end in (RECORDS, RECORDS + 5):
        take_all(written, str(use.directory / "output"))
        found = use.spark.read.parquet(str(use.directory / "output")).collect()
        assert sorted(int(bytes(row.value)) for row in found) == list(range(end))
        use.topic.number(5, first=end)


def table_load(use: Use) -> None:
    """Into a Delta table."""
    result = load(
        use.spark,
        bootstrap_servers=use.client["bootstrap.servers"],
        topic=use.topic.name,
        to=str(use.directory / "table"),
        format="delta",
        group=use.group,
        options=use.kafka_options,
    )
    found = DeltaTable(str(use.directory / "table")).to_pyarrow_table()["value"].to_pylist()
    assert result.rows == RECORDS
    assert sorted(map(int, found)) == list(range(RECORDS))


def write(use: Use) -> None:
    """In a transaction."""
    rows = use.spark.range(5, numPartitions=1).selectExpr("concat('row ', id) AS value")
    options = {**use.kafka_options, "topic": use.topic.name, "delivery": "exactly-once"}
    rows.write.format("pykafka").options(**options).mode("append").save()
    found = committed_values(use.topic.bootstrap, use.topic.name)
    assert found == sorted([b"row %d" % n for n in range(5)] + [b"%d" % n for n in range(RECORDS)])


def commands(use: Use) -> None:
    """`pykafka produce`, `consume` as a member of a group, and `groups describe`, with a properties file."""
    config = ("--config", str(use.file))
    answer_of("produce", "--topic", use.topic.name, *config, stdin=b"typed\n")
    limits = ("--group", use.group, "--from-beginning", "--max-messages", str(RECORDS + 1))
    shown = answer_of("consume", "--topic", use.topic.name, *limits, *config).split()
    assert shown == [*map(str, range(RECORDS)), "typed"]
    (described,) = json.loads(answer_of("groups", "describe", "--group", use.group, "--json", *config))
    assert described["group"] == use.group


def console(use: Use) -> None:
    """`pykafka ui`: its API shows the records."""
    with _serving(client_settings(None, use.file, {"client.id": "pykafka-ui"})) as address:
        eventually(lambda: _status(f"{address}/api/v3/clusters") == 200)
        path = f"/api/topics/{urllib.parse.quote(use.topic.name)}/records?from=start&limit={RECORDS}"
        with urllib.request.urlopen(f"{address}{path}", timeout=60) as answer:
            found = json.load(answer)["records"]
    assert [int(one["value"]) for one in found] == list(range(RECORDS))


def mirror(use: Use) -> None:
    """`pykafka mirror` from this cluster to another."""
    route = ("--source-config", str(use.file), "--to", use.target, "--source-alias", use.group)
    answer = json.loads(answer_of("mirror", *route, "--topics", use.topic.name, "--once", "--json"))
    assert answer["lag"] == 0
    assert sorted(map(int, committed_values(use.target, use.topic.name))) == list(range(RECORDS))


USES: Mapping[str, Callable[[Use], None]] = {
    "batch": batch,
    "stream": stream,
    "load": table_load,
    "write": write,
    "commands": commands,
    "console": console,
    "mirror": mirror,
}
_BY_SPARK = ("batch", "stream", "load", "write")


def uses_of(login: Login) -> list[str]:
    """An option of the connector says nothing to others."""
    return [name for name in USES if not login.options or name in _BY_SPARK]


def logins() -> str:
    """What was run, as Markdown."""
    head = ["login", *USES, "Apache Kafka"]
    rows = ([f"{one.name}: {one.what}", *(_cell(one, use) for use in USES), one.apache] for one in LOGINS)
    return table(head, rows)


def _cell(login: Login, use: str) -> str:
    return f"`{login.name}-{use}`" if use in uses_of(login) else "–"


@contextlib.contextmanager
def _serving(settings: ClientSettings) -> Iterator[str]:
    """The address of a console in this process: one of its own costs seconds of a core."""
    with contextlib.closing(socket.socket()) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        app = make_app(Console(settings, Decoder(None)), Credentials("", "", ""), "127.0.0.1")
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=2))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(60)


def _status(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code
