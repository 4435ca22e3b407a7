"""An Iceberg REST catalog over HTTP, as loads meet one: requests are pyiceberg's own, and SQLite keeps what they do.

    with RestCatalog(directory) as rest:
        rest.fail_commits(RestFault.ERROR_AFTER)
        use(rest.uri)

Requirements and updates arrive as JSON and are checked by another process's catalog, as a real server does; what the
client leaves out of its JSON is not there. It has the paths that loads ask for, below the prefix `lakehouse`, as
servers with several warehouses have.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest, Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

_STATUS = {
    CommitFailedException: 409,
    TableAlreadyExistsError: 409,
    NamespaceAlreadyExistsError: 409,
    NoSuchTableError: 404,
    NoSuchNamespaceError: 404,
}


class RestFault(Enum):
    """What happens to a commit instead of what should."""

    ERROR = "answers 500 and has done nothing"
    ERROR_AFTER = "answers 500 although it has committed"
    BUSY = "answers 503 and has done nothing"
    CONFLICT_AFTER = "answers 409 although it has committed, as to a proxy's second try"


class RestCatalog:
    """The server, from `rest_catalog` on."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.tables = SqlCatalog("rest", uri=f"sqlite:///{directory}/rest.db", warehouse=f"file://{directory}/rest")
        self.lock = threading.Lock()
        self.commits: list[int] = []
        """The status of each answer to a commit."""
        self._faults: list[RestFault] = []
        handler = type("Handler", (_Handler,), {"rest": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.uri = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def fail_commits(self, *faults: RestFault) -> None:
        """Let the next commits fail, each in its way."""
        self._faults += faults

    def due(self) -> RestFault | None:
        return self._faults.pop(0) if self._faults else None

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self.tables.close()


@contextmanager
def rest_catalog(directory: Path) -> Iterator[RestCatalog]:
    with closing(RestCatalog(directory)) as rest:
        yield rest


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a body waits 40 ms for the client to acknowledge its headers
    rest: ClassVar[RestCatalog]

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def log_message(self, *_: Any) -> None:
        """Keep the output of tests clean."""

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        path = unquote(url.path)
        try:
            with self.rest.lock:
                status, answer = self._answer(path, url.query, body)
        except tuple(_STATUS) as error:
            status, answer = _STATUS[type(error)], _error(error, _STATUS[type(error)])
        if self.command == "POST" and "/tables/" in path:
            self.rest.commits.append(status)
        data = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else data)

    def _answer(self, path: str, query: str, body: bytes) -> tuple[int, Any]:
        if path == "/v1/config":
            return 200, {"defaults": {}, "overrides": {"prefix": "lakehouse"}}
        found = re.fullmatch(r"/v1/lakehouse/namespaces(?:/([^/]+)(?:/tables(?:/([^/]+))?)?)?", path)
        if found is None:
            return 404, _error(NotImplementedError(path), 404)
        namespace = tuple((found[1] or "").split("\x1f"))
        catalog, is_tables = self.rest.tables, "/tables" in path
        if found[2]:
            return self._of_table((*namespace, found[2]), body)
        if is_tables and self.command == "POST":
            return 200, _loaded(_created(catalog, namespace, body))
        if is_tables:
            return 200, {
                "identifiers": [{"namespace": one[:-1], "name": one[-1]} for one in catalog.list_tables(namespace)]
            }
        if found[1]:
            return 200, {"namespace": namespace, "properties": catalog.load_namespace_properties(namespace)}
        if self.command == "POST":
            catalog.create_namespace(tuple(json.loads(body)["namespace"]))
            return 200, json.loads(body)
        return 200, {"namespaces": [] if "parent=" in query else catalog.list_namespaces()}

    def _of_table(self, name: tuple[str, ...], body: bytes) -> tuple[int, Any]:
        catalog = self.rest.tables
        if self.command == "HEAD":
            catalog.load_table(name)
            return 204, None
        if self.command == "GET":
            return 200, _loaded(catalog.load_table(name))
        fault = self.rest.due()
        if fault in (RestFault.ERROR, RestFault.BUSY):
            status = 503 if fault is RestFault.BUSY else 500
            return status, _error(RuntimeError(fault.value), status)
        request = CommitTableRequest.model_validate_json(body)
        done = catalog.commit_table(catalog.load_table(name), request.requirements, request.updates)
        if fault is not None:
            status = 409 if fault is RestFault.CONFLICT_AFTER else 500
            return status, _error(RuntimeError(fault.value), status)
        return 200, json.loads(done.model_dump_json(by_alias=True))


def _created(catalog: SqlCatalog, namespace: tuple[str, ...], body: bytes) -> Table:
    asked = CreateTableRequest.model_validate({"location": None, **json.loads(body)})
    return catalog.create_table(
        (*namespace, asked.name),
        asked.table_schema,
        location=asked.location,
        partition_spec=asked.partition_spec or UNPARTITIONED_PARTITION_SPEC,
        sort_order=asked.write_order or UNSORTED_SORT_ORDER,
        properties=asked.properties,
    )


def _loaded(table: Table) -> dict[str, Any]:
    return {
        "metadata-location": table.metadata_location,
        "metadata": json.loads(table.metadata.model_dump_json(by_alias=True)),
        "config": {},
    }


def _error(error: Exception, status: int) -> dict[str, Any]:
    return {"error": {"message": str(error), "type": type(error).__name__, "code": status}}
