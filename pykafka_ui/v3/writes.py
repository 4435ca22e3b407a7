"""What `--allow-changes` allows programs: topics made, altered and deleted, records written."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from broker.client.admin_types import NewTopic
from broker.client.cluster_metadata import UnknownTopic
from broker.client.producer_batch import RecordFuture
from broker.errors import PykafkaError
from broker.protocol.described_config import ResourceType
from pykafka_ui.console import DELIVERED_S, Console
from pykafka_ui.render import status_of
from pykafka_ui.v3.reads import topic
from pykafka_ui.v3.record_json import RecordToSend, concatenated, parse_record, time_text
from pykafka_ui.v3.resources import Document, View, snapshot_of

_MOST_BYTES = 16 << 20


async def _body(request: Request) -> str:
    found = bytearray()
    async for piece in request.stream():
        found += piece
        if len(found) > _MOST_BYTES:
            raise HTTPException(413, f"at most {_MOST_BYTES} bytes at once")
    try:
        return found.decode()
    except UnicodeDecodeError:
        raise HTTPException(400, "not UTF-8") from None


Body = Annotated[str, Depends(_body)]


class Setting(BaseModel):
    """A setting of a new topic."""

    name: str
    value: str | None = None


class TopicToCreate(BaseModel):
    """REST Proxy's CreateTopicRequestData; what is left out is the broker's default."""

    topic_name: str
    partitions_count: int = Field(-1, ge=-1, le=2**15 - 1)
    replication_factor: int = Field(-1, ge=-1, le=2**15 - 1)
    replicas_assignments: dict[int, list[int]] = {}
    configs: list[Setting] = []


class Alteration(Setting):
    """`operation`: SET, or DELETE for the default."""

    operation: str | None = "SET"


class Alterations(BaseModel):
    """REST Proxy's AlterConfigBatchRequestData."""

    data: list[Alteration]


class Writes:
    def __init__(self, console: Console) -> None:
        self._console = console

    def router(self) -> APIRouter:
        api = APIRouter(prefix="/api/v3/clusters/{cluster_id}/topics", tags=["v3"])
        api.add_api_route("", self.create, methods=["POST"], status_code=201)
        api.add_api_route("/{topic_name}", self.delete, methods=["DELETE"], status_code=204)
        api.add_api_route("/{topic_name}/configs:alter", self.alter, methods=["POST"], status_code=204)
        api.add_api_route("/{topic_name}/records", self.records, methods=["POST"])
        api.add_api_route("/{topic_name}/records:batch", self.batch, methods=["POST"], status_code=207)
        return api

    def create(self, request: Request, cluster_id: str, wanted: TopicToCreate) -> Document:
        """Make a topic. It is answered when it is there."""
        snapshot_of(self._console, cluster_id)
        settings = {one.name: one.value for one in wanted.configs if one.value is not None}
        if sorted(wanted.replicas_assignments) != list(range(len(wanted.replicas_assignments))):
            raise HTTPException(400, "replicas_assignments: must name partitions from 0 on, without a gap")
        assigned = [wanted.replicas_assignments[index] for index in sorted(wanted.replicas_assignments)]
        name = wanted.topic_name
        self._console.create_topic(
            NewTopic(name, wanted.partitions_count, wanted.replication_factor, settings, assigned)
        )
        view = View(self._console, request, {"cluster_id": cluster_id})
        if name not in view.seen.topics:
            raise HTTPException(503, f"topic {name!r} is made, but not every broker knows it yet")
        return topic.document(view, ["topics", name], view.seen.topics[name])

    def delete(self, cluster_id: str, topic_name: str) -> None:
        """Delete a topic and its records."""
        snapshot_of(self._console, cluster_id)
        self._console.change(lambda admin: admin.delete_topics([topic_name]))

    def alter(self, cluster_id: str, topic_name: str, wanted: Alterations) -> None:
        """Change settings of a topic. All of them, or none."""
        snapshot_of(self._console, cluster_id)
        operations = {(one.operation or "SET").upper() for one in wanted.data}
        if unknown := operations - {"SET", "DELETE"}:
            raise HTTPException(400, f"operation {min(unknown)}: must be SET or DELETE")
        deleted = [one.name for one in wanted.data if (one.operation or "").upper() == "DELETE"]
        settings = {one.name: one.value or "" for one in wanted.data if one.name not in deleted}
        self._console.change(
            lambda admin: admin.alter_configs(ResourceType.TOPIC, topic_name, settings, delete=deleted)
        )

    def records(self, cluster_id: str, topic_name: str, text: Body) -> Response:
        """Write records: JSON objects, one after the other. The reports follow each other in the same order.

        Each report has an `error_code`: 200 if the record is written. All records are taken before the first report.
        """
        snapshot_of(self._console, cluster_id)
        reports = self._written(cluster_id, topic_name, list(concatenated(text)))
        lines = "".join(json.dumps(report) + "\n" for report in reports)
        return Response(lines, media_type="application/json")

    def batch(self, cluster_id: str, topic_name: str, text: Body) -> Document:
        """Write records (`entries`) that have an `id` each, by which the answer tells what became of them."""
        snapshot_of(self._console, cluster_id)
        document = next(concatenated(text), None)
        entries = document.get("entries") if isinstance(document, dict) else None
        if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
            raise HTTPException(400, "entries: a list of records is needed")
        successes, failures = [], []
        for entry, report in zip(entries, self._written(cluster_id, topic_name, entries), strict=True):
            named = {"id": str(entry.get("id", ""))[:80], **report}
            if named["error_code"] == 200:
                del named["error_code"]
                successes.append(named)
            else:
                failures.append(named)
        return {"successes": successes, "failures": failures}

    def _written(self, cluster_id: str, topic: str, documents: Sequence[Any]) -> Iterator[Document]:
        """A report for each, when it is acknowledged. Raises UnknownTopic."""
        partitions = self._console.ask(lambda admin: admin.cluster.topic(topic)).partitions
        waiting: list[tuple[RecordToSend, RecordFuture] | PykafkaError] = []
        for document in documents:
            try:
                one = parse_record(document)
                if one.partition is not None and one.partition not in partitions:
                    raise UnknownTopic(f"topic {topic!r} has {len(partitions)} partitions, but no {one.partition}")
                waiting.append((one, self._console.send(topic, one)))
            except PykafkaError as error:
                waiting.append(error)
        deadline = time.monotonic() + DELIVERED_S
        for found in waiting:
            try:
                if isinstance(found, PykafkaError):
                    raise found
                yield _report(cluster_id, *found, deadline - time.monotonic())
            except PykafkaError as error:
                yield {"error_code": status_of(error), "message": str(error)}


def _report(cluster_id: str, sent: RecordToSend, future: RecordFuture, timeout_s: float) -> Document:
    at = future.result(max(timeout_s, 0.001))
    return {
        "error_code": 200,
        "cluster_id": cluster_id,
        "topic_name": at.topic,
        "partition_id": at.partition,
        "offset": at.offset,
        "timestamp": time_text(at.timestamp),
        "key": sent.key_type and {"type": sent.key_type, "size": len(sent.key or b"")},
        "value": sent.value_type and {"type": sent.value_type, "size": len(sent.value or b"")},
    }
