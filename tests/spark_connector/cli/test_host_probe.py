"""What the doctor's task sees on a host, also with a Python that has the standard library only."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from broker.storage.storage import open_storage
from broker.tools.checkup import PACKAGE
from spark_connector.cli import host_probe
from spark_connector.cli.host_probe import DRIVERS_FILE, Order, look
from tests.support.free_ports import refused_port
from tests.support.kafka import Kafka

TOKEN = "a token"


def seen(order: Order) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(look(tuple(order)))
    return found


def seen_by_bare_python(order: Order) -> dict[str, Any]:
    """By one that has neither pykafka nor any other package, as the text goes to it."""
    program = "import json, runpy, sys; print(runpy.run_path(sys.argv[1])['look'](json.loads(sys.argv[2])))"
    command = [sys.executable, "-I", "-S", "-c", program, str(host_probe.__file__), json.dumps(order)]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_host_tells_its_python_the_package_and_the_libraries() -> None:
    found = seen(Order(PACKAGE, libraries=("pyarrow", "no-such-library")))
    assert (found["host"], found["executable"]) == (socket.gethostname(), sys.executable)
    assert (found["package"]["version"] is not None, found["package"]["lacks"]) == (True, None)
    assert (found["libraries"]["pyarrow"] is not None, found["libraries"]["no-such-library"]) == (True, None)
    assert found["began"] <= found["ended"]


def test_a_known_host_tells_the_time_only() -> None:
    found = seen(Order(PACKAGE, known=(socket.gethostname(),)))
    assert found.keys() == {"host", "task", "began", "ended"}


def test_without_any_package_the_standard_library_looks(broker: Kafka, tmp_path: Path) -> None:
    (tmp_path / DRIVERS_FILE).write_text(TOKEN)
    brokers = (("broker 0", broker.bootstrap.partition(",")[0]),)
    found = seen_by_bare_python(Order(PACKAGE, brokers=brokers, place=(str(tmp_path), (), TOKEN)))
    assert found["package"]["version"] is None
    assert "No module named 'spark_connector'" in found["package"]["lacks"]
    assert found["brokers"]["broker 0"].keys() == {"ms"}
    assert (found["place"]["is_shared"], (tmp_path / found["place"]["left"]).read_text()) == (True, TOKEN)
    behind_tls = seen_by_bare_python(Order(PACKAGE, brokers=brokers, client=(("security.protocol", "SSL"),)))
    assert "cannot be tried without the package" in behind_tls["brokers"]["broker 0"]["unknown"]
    in_a_store = seen_by_bare_python(Order(PACKAGE, place=("s3://lake/x", (), TOKEN)))
    assert in_a_store["place"] == {
        "unknown": "without the package it cannot be opened there (No module named 'broker')"
    }


def test_each_broker_is_reached_by_its_own_address(broker: Kafka) -> None:
    with refused_port() as port:
        brokers = (
            ("broker 0", broker.bootstrap.partition(",")[0]),
            ("broker 1", f"127.0.0.1:{port}"),
            ("broker 2", "no-such-host.invalid:9092"),
        )
        found = seen(Order(PACKAGE, brokers=brokers))["brokers"]
    assert found["broker 0"]["ms"] > 0
    assert f"no connection to 127.0.0.1:{port}: " in found["broker 1"]["error"]
    assert "the name no-such-host.invalid has no address there: " in found["broker 2"]["error"]
    wrong = seen(Order(PACKAGE, brokers=brokers[:1], client=(("security.protocol", "SSL"),)))["brokers"]["broker 0"]
    assert "is it a TLS listener" in wrong["error"]


def test_a_stranger_at_a_brokers_address_is_no_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"

        def answer() -> None:
            with listener.accept()[0] as sock:
                sock.recv(64)
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        found = seen_by_bare_python(Order(PACKAGE, brokers=(("broker 0", address),)))
        thread.join()
    assert found["brokers"]["broker 0"] == {"error": f"what answers at {address} is no broker"}


def test_a_directory_without_the_drivers_file_is_another_place_and_stays_as_it_was(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "none"):
        assert seen(Order(PACKAGE, place=(str(directory), (), TOKEN)))["place"] == {"is_shared": False}
    (tmp_path / DRIVERS_FILE).write_text("another token")
    assert seen(Order(PACKAGE, place=(str(tmp_path), (), TOKEN)))["place"] == {"is_shared": False}
    assert os.listdir(tmp_path) == [DRIVERS_FILE]


@pytest.mark.parametrize("doing", ["write", "read back what it wrote", "delete"])
def test_what_a_host_may_not_do_is_told(doing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / DRIVERS_FILE).write_text(TOKEN)
    files = host_probe._open_files(str(tmp_path), {})

    def refuse(*_: object) -> Any:
        raise PermissionError(13, "Permission denied")

    def refuse_own(name: str) -> bytes:
        return files.read(name) if name == DRIVERS_FILE else refuse()

    refusing: dict[str, dict[str, Any]] = {
        "write": {"write": refuse},
        "read back what it wrote": {"read": refuse_own},
        "delete": {"remove": refuse},
    }
    monkeypatch.setattr(host_probe, "_open_files", lambda *_: files._replace(**refusing[doing]))
    told = seen(Order(PACKAGE, place=(str(tmp_path), (), TOKEN)))["place"]
    assert told == {"error": f"may not {doing} there: [Errno 13] Permission denied"}


def test_a_store_is_looked_at_by_its_library() -> None:
    url = "memory://doctor/probe"
    with open_storage(url).open_output(DRIVERS_FILE) as file:
        file.write(TOKEN.encode())
    told = seen(Order(PACKAGE, place=(url, (), TOKEN)))["place"]
    assert open_storage(url).names("") == [DRIVERS_FILE, told["left"]]
    missing = seen(Order(PACKAGE, place=("no-such-store://x/y", (), TOKEN)))["place"]
    assert missing["error"].startswith("cannot open it: ")
