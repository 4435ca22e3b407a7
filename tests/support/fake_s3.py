"""An S3 server with a lock, for races and faults: every request is carried out whole, one after the other.

    with FakeS3() as s3:
        s3.fault("PUT", r"_delta_log/", Fault.LOST_ANSWER)
        use(s3.url, s3.options)

Real HTTP on a socket, so that s3fs, deltalake and duckdb meet it from any process. It is a process of its own, because
deltalake keeps Python's lock while it waits for an answer. It has what these ask for: objects with ranges and
conditions, lists, bulk deletion, multipart uploads. Every bucket exists but those that begin with "missing".
Signatures are not checked. Who wants the answers of Amazon in detail takes moto; its writes do not exclude each other.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.support.waiting import eventually

_TIME = "2026-01-01T00:00:00.000Z"
_PAGE = 1000  # names in a list, as Amazon's
_ROOT = Path(__file__).parents[2]


class Fault(Enum):
    """What happens to a request instead of what should."""

    ERROR = "answers 500 and has done nothing"
    ERROR_AFTER = "answers 500 although it has done what was asked"
    LOST_ANSWER = "does what was asked and closes the connection without a word"
    DENIED = "answers 403 and has done nothing"
    HELD = "does nothing until `release` is called"


class FakeS3:
    """The server, from `with` to its end."""

    url: str

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.support.fake_s3"]
        self._process = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = self._read()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    @property
    def options(self) -> dict[str, str]:
        """Storage options of pykafka's loads."""
        return {"endpoint_url": self.url, "key": "me", "secret": "hush-hush", "region": "us-east-1"}

    @property
    def environment(self) -> dict[str, str]:
        """The same as AWS's variables."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "me",
            "AWS_SECRET_ACCESS_KEY": "hush-hush",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def reset(self, *, ignores_conditions: bool = False) -> None:
        """Forget objects, requests and faults. `ignores_conditions`: overwrite, whatever If-None-Match says."""
        self._call("reset", ignores_conditions)

    def keys(self, prefix: str = "") -> list[str]:
        """`bucket/key` of all objects."""
        return list(self._call("keys", prefix))

    def requests(self) -> list[tuple[str, str, int]]:
        """(method, path with query, status) of every answer; 0 for one that was lost."""
        return [(method, path, status) for method, path, status in self._call("answered")]

    def uploads(self) -> int:
        """Multipart uploads that are neither completed nor aborted."""
        return int(self._call("unfinished"))

    def fault(self, method: str, path: str, fault: Fault, times: int = 1) -> None:
        """Let the next `times` requests whose path and query match fail."""
        self._call("plan", method, path, fault.name, times)

    def wait_for_faults(self) -> None:
        """Return when a request has met each planned fault."""
        eventually(lambda: self._call("all_met"))

    def release(self) -> None:
        """Carry out what is HELD."""
        self._call("release")

    def _call(self, name: str, *arguments: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


@dataclass
class _Planned:
    method: str
    path: re.Pattern[str]
    fault: Fault
    times: int
    met: bool = False


class _State:
    """What the server has, and its part of the calls above. The process ends with its standard input."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.numbers = itertools.count(1)
        self.released = threading.Event()
        self.reset(False)

    def reset(self, ignores_conditions: bool) -> None:
        self.ignores_conditions = ignores_conditions
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.requests: list[tuple[str, str, int]] = []
        self.planned: list[_Planned] = []
        self.released.clear()

    def keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self.objects if key.startswith(prefix))

    def answered(self) -> list[tuple[str, str, int]]:
        return self.requests

    def unfinished(self) -> int:
        return len(self.uploads)

    def plan(self, method: str, path: str, fault: str, times: int) -> None:
        self.planned.append(_Planned(method, re.compile(path), Fault[fault], times))

    def all_met(self) -> bool:
        return all(planned.met for planned in self.planned)

    def release(self) -> None:
        self.released.set()

    def due(self, method: str, path: str) -> Fault | None:
        with self.lock:
            for planned in self.planned:
                if planned.times and planned.method == method and planned.path.search(path):
                    planned.times -= 1
                    planned.met = True
                    return planned.fault
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep quiet of a client that was killed and does not take its answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _main(host: str = "127.0.0.1") -> None:
    server = _Server((host, 0), _Handler)
    _Handler.s3 = state = _State()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps(f"http://{host}:{server.server_port}"), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        with state.lock:
            print(json.dumps(getattr(state, name)(*arguments)), flush=True)


def etag_of(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


@dataclass
class _Answer:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def _xml(name: str, content: str) -> _Answer:
    space = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
    text = f'<?xml version="1.0" encoding="UTF-8"?><{name} {space}>{content}</{name}>'
    return _Answer(200, text.encode(), {"Content-Type": "application/xml"})


def _error(status: int, code: str) -> _Answer:
    text = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
    return _Answer(status, text.encode(), {"Content-Type": "application/xml"})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a body waits 40 ms for the client to acknowledge its headers
    s3: _State

    def _serve(self) -> None:
        body = self._body()
        fault = self.s3.due(self.command, self.path)
        if fault is Fault.HELD:
            self.s3.released.wait()
        if fault is Fault.ERROR:
            answer = _error(500, "InternalError")
        elif fault is Fault.DENIED:
            answer = _error(403, "AccessDenied")
        else:
            with self.s3.lock:
                answer = self._answer(body)
        if fault is Fault.LOST_ANSWER:
            self.s3.requests.append((self.command, self.path, 0))
            self.close_connection = True
            return
        self._send(_error(500, "InternalError") if fault is Fault.ERROR_AFTER else answer)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 - the names that http.server calls

    def _body(self) -> bytes:
        """Also in the chunks of AWS's own libraries, which sign or sum up each: `SIZE;…`, bytes, and a 0 at the end."""
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return body
        data, at = b"", 0
        while True:
            end = body.index(b"\r\n", at)
            size = int(body[at:end].partition(b";")[0], 16)
            if size == 0:
                return data
            data += body[end + 2 : end + 2 + size]
            at = end + 4 + size

    def _send(self, answer: _Answer) -> None:
        self.s3.requests.append((self.command, self.path, answer.status))
        self.send_response(answer.status)
        headers = {"Content-Length": str(len(answer.body)), **answer.headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def _answer(self, body: bytes) -> _Answer:
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        if bucket.startswith("missing"):
            return _error(404, "NoSuchBucket")
        name = f"{bucket}/{key}"
        if not key:
            return self._answer_of_bucket(bucket, query, body)
        if "uploads" in query or "uploadId" in query:
            return self._answer_of_upload(name, query, body)
        if self.command == "PUT":
            return self._put(name, body)
        if self.command == "DELETE":
            self.s3.objects.pop(name, None)
            return _Answer(204)
        return self._get(name)

    def _answer_of_bucket(self, bucket: str, query: Mapping[str, str], body: bytes) -> _Answer:
        if self.command == "POST" and "delete" in query:
            found = [element.text for element in ElementTree.fromstring(body).iter() if element.tag.endswith("Key")]
            for key in found:
                self.s3.objects.pop(f"{bucket}/{key}", None)
            return _xml("DeleteResult", "".join(f"<Deleted><Key>{escape(key or '')}</Key></Deleted>" for key in found))
        if self.command == "GET" and "location" in query:
            return _xml("LocationConstraint", "")
        if self.command == "GET":
            return self._list(bucket, query)
        return _Answer(200)

    def _list(self, bucket: str, query: Mapping[str, str]) -> _Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        entries: list[str] = []
        last, more, seen = "", False, set()
        for name in self.s3.keys(f"{bucket}/{prefix}"):
            key = name.partition("/")[2]
            head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            common = prefix + head + found if found else None
            if key <= after or (common is not None and (common in seen or after.startswith(common))):
                continue
            if len(entries) == int(query.get("max-keys", _PAGE)):
                more = True
                break
            if common is not None:
                seen.add(common)
                entries.append(f"<CommonPrefixes><Prefix>{escape(common)}</Prefix></CommonPrefixes>")
            else:
                entries.append(_listed(key, self.s3.objects[name]))
            last = common or key
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if more else ""
        return _xml(
            "ListBucketResult",
            f"<Name>{escape(bucket)}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(entries)}</KeyCount>"
            f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>{token}{''.join(entries)}",
        )

    def _refuses(self, name: str) -> bool:
        if self.s3.ignores_conditions:
            return False
        there = self.s3.objects.get(name)
        match = self.headers.get("If-Match")
        if self.headers.get("If-None-Match") == "*" and there is not None:
            return True
        return match is not None and (there is None or match != etag_of(there))

    def _put(self, name: str, body: bytes) -> _Answer:
        if self._refuses(name):
            return _error(412, "PreconditionFailed")
        source = self.headers.get("x-amz-copy-source")
        if source is not None:
            body = self.s3.objects[unquote(source).lstrip("/")]
        self.s3.objects[name] = body
        if source is not None:
            return _xml("CopyObjectResult", f"<ETag>{etag_of(body)}</ETag><LastModified>{_TIME}</LastModified>")
        return _Answer(200, headers={"ETag": etag_of(body)})

    def _get(self, name: str) -> _Answer:
        data = self.s3.objects.get(name)
        if data is None:
            return _error(404, "NoSuchKey")
        headers = {"ETag": etag_of(data), "Last-Modified": formatdate(1767225600, usegmt=True)}
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if self.command == "HEAD":
            return _Answer(200, headers={**headers, "Content-Length": str(len(data)), "Accept-Ranges": "bytes"})
        if wanted is None:
            return _Answer(200, data, headers)
        first, last = wanted[1], wanted[2]
        start = int(first) if first else max(len(data) - int(last), 0)
        end = min(int(last) + 1 if first and last else len(data), len(data))
        if start >= len(data):
            return _error(416, "InvalidRange")
        return _Answer(206, data[start:end], {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"})

    def _answer_of_upload(self, name: str, query: Mapping[str, Any], body: bytes) -> _Answer:
        uploads = self.s3.uploads
        if self.command == "POST" and "uploads" in query:
            upload = f"upload-{next(self.s3.numbers)}"
            uploads[upload] = {}
            return _xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
        upload = query["uploadId"]
        if upload not in uploads:
            return _error(404, "NoSuchUpload")
        if self.command == "PUT":
            uploads[upload][int(query["partNumber"])] = body
            return _Answer(200, headers={"ETag": etag_of(body)})
        if self.command == "DELETE":
            del uploads[upload]
            return _Answer(204)
        if self._refuses(name):
            return _error(412, "PreconditionFailed")
        self.s3.objects[name] = b"".join(part for _, part in sorted(uploads.pop(upload).items()))
        return _xml("CompleteMultipartUploadResult", f"<ETag>{escape(etag_of(self.s3.objects[name]))}</ETag>")

    def log_message(self, format: str, *args: object) -> None:
        """Quiet; `requests` has it."""


def _listed(key: str, data: bytes) -> str:
    return (
        f"<Contents><Key>{escape(key)}</Key><LastModified>{_TIME}</LastModified><ETag>{escape(etag_of(data))}</ETag>"
        f"<Size>{len(data)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )


if __name__ == "__main__":
    _main(*sys.argv[1:])
