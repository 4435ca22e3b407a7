"""Who may ask the console: hosts, other sites' pages, passwords and tokens."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import html
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest

from pykafka_ui.access import Access, Credentials, is_loopback
from tests.support.console import error_of
from tests.support.free_ports import refused_port
from tests.support.kafka import Kafka
from tests.support.ui_process import UiProcess
from tests.support.waiting import eventually


def basic(user_and_password: str) -> dict[str, str]:
    return {"authorization": f"Basic {base64.b64encode(user_and_password.encode()).decode()}"}


def test_every_answer_has_a_strict_content_policy(ui: UiProcess) -> None:
    for path in ("/", "/static/ui.js", "/api/v3/clusters", "/nothing-here"):
        policy = ui.get(path).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy


def test_pages_and_api_are_not_kept_by_browsers(ui: UiProcess) -> None:
    assert ui.get("/").headers["cache-control"] == "no-store"
    assert ui.get("/api/v3/clusters").headers["cache-control"] == "no-store"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "[fe80::1]:80", ""])
def test_a_name_that_points_here_by_dns_rebinding_is_refused(ui: UiProcess, host: str) -> None:
    assert ui.get("/api/v3/clusters", {"host": host}).status == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1:1", "[::1]:8080", "127.1.2.3"])
def test_names_of_loopback_are_taken(ui: UiProcess, host: str) -> None:
    assert ui.get("/api/v3/clusters", {"host": host}).status == 200


def test_a_page_of_another_site_reads_nothing_but_may_have_a_link(ui: UiProcess) -> None:
    for site in ("cross-site", "same-site"):
        assert ui.get("/api/v3/clusters", {"sec-fetch-site": site, "sec-fetch-mode": "cors"}).status == 403
        assert ui.get("/", {"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}).status == 403
        assert ui.get("/", {"sec-fetch-site": site, "sec-fetch-mode": "navigate"}).status == 200
        assert ui.get("/", {"sec-fetch-site": site, "sec-fetch-mode": "navigate"}, "POST").status == 403
        link = {"sec-fetch-site": site, "sec-fetch-mode": "navigate"}
        for query in ("path=$..*..*", "text=x", "token=x", ""):
            assert ui.get(f"/topics/none/records?{query}", link).status == (403 if query else 404), query
    assert ui.get("/api/v3/clusters", {"origin": "http://evil.example"}).status == 403
    assert ui.get("/api/v3/clusters", {"sec-fetch-site": "same-origin"}).status == 200


def test_nothing_can_be_changed(ui: UiProcess) -> None:
    for path in ("/topics", "/api/v3/clusters", "/groups"):
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            assert ui.get(path, method=method).status == 405


@pytest.fixture(scope="module")
def locked(broker: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UiProcess]:
    directory = tmp_path_factory.mktemp("secrets")
    (directory / "password").write_text("pass:w0rd ü\n")
    (directory / "token").write_text("t0ken\n")
    process = UiProcess(
        broker.bootstrap, "--auth", f"ann:{directory / 'password'}", "--token-file", str(directory / "token")
    )
    yield process
    _, errors = process.stop()
    assert "w0rd" not in errors
    assert "t0ken" not in errors


def test_the_right_password_or_token_opens_it(locked: UiProcess) -> None:
    assert locked.get("/", basic("ann:pass:w0rd ü")).status == 200
    assert locked.get("/api/v3/clusters", {"authorization": "Bearer t0ken"}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        basic("ann:"),
        basic("ann:pass:w0rd"),
        basic("bob:pass:w0rd ü"),
        basic(""),
        {"authorization": "Basic ???"},
        {"authorization": "Bearer"},
        {"authorization": "Bearer t0ken2"},
        {"authorization": "Bearer pass:w0rd"},
    ],
)
def test_others_see_nothing_not_even_styles(locked: UiProcess, headers: dict[str, str]) -> None:
    for path in ("/", "/static/ui.js", "/metrics", "/api/openapi.json"):
        answer = locked.get(path, headers)
        assert answer.status == 401
        assert answer.headers["www-authenticate"].startswith("Basic ")


def test_a_token_in_the_address_lets_a_browser_in_and_is_not_kept_there(locked: UiProcess) -> None:
    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            return None

    stay = urllib.request.build_opener(Stay)
    with pytest.raises(urllib.error.HTTPError) as caught:
        stay.open(f"{locked.address}//evil.example/topics?q=a+b&token=t0ken", timeout=30)
    with caught.value as answer:
        cookie = str(answer.headers["set-cookie"])
        assert (answer.status, answer.headers["location"]) == (303, "/evil.example/topics?q=a+b")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert "t0ken" not in cookie
    assert locked.get("/topics", {"cookie": cookie.partition(";")[0]}).status == 200
    assert locked.get("/topics", {"cookie": "pykafka-ui=t0ken"}).status == 401
    assert locked.get("/topics?token=t0ken2").status == 401


def test_who_may_change_something_needs_the_token_that_the_console_prints(broker: Kafka) -> None:
    with UiProcess(broker.bootstrap, "--allow-changes") as changing:
        assert len(changing.entrance) > len(changing.address) + 30
        stranger = {"authorization": ""}
        assert changing.post("/new-topic", "name=stolen&confirmed=yes", stranger).status == 401
        assert changing.get("/topics", stranger).status == 401
        assert changing.get("/topics").status == 200
    with UiProcess(broker.bootstrap, "--allow-changes") as again:
        assert again.entrance.partition("?")[2] != changing.entrance.partition("?")[2]


async def asked(access: Access, headers: dict[str, str], address: str = "10.0.0.1") -> int:
    """The status of an answer."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "path": "/", "raw_path": b"/", "query_string": b"", "headers": raw}
    await access({**scope, "client": (address, 1)}, receive, send)
    return int(sent[0]["status"])


def test_wrong_passwords_wait_for_each_other_and_many_are_not_even_read() -> None:
    async def run() -> None:
        waits: list[float] = []
        released = asyncio.Event()

        async def sleep(seconds: float) -> None:
            waits.append(seconds)
            await released.wait()

        async def app(_scope: Any, _receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})

        access = Access(app, credentials=Credentials("ann", "right"), host="0.0.0.0", sleep=sleep)
        wrong = [asyncio.create_task(asked(access, basic("ann:wrong"))) for _ in range(10)]
        while len(waits) < 10:
            await asyncio.sleep(0)
        assert waits == sorted(waits)
        assert len(set(waits)) == 10, "one after the other"
        assert await asked(access, basic("ann:right")) == 429, "a right one is not told from a wrong one"
        assert await asked(access, basic("ann:right"), "10.0.0.2") == 200
        assert await asked(access, {}) == 401, "who shows nothing guesses nothing"
        released.set()
        assert await asyncio.gather(*wrong) == [401] * 10
        assert await asked(access, basic("ann:right")) == 200

    asyncio.run(run())


def test_a_large_body_is_not_read(ui: UiProcess, broker: Kafka) -> None:
    with UiProcess(broker.bootstrap, "--allow-changes") as changing:
        for size, status in ((60 << 20, 413), (5 << 20, 413)):
            with contextlib.closing(
                socket.create_connection(("127.0.0.1", int(changing.address.rpartition(":")[2])))
            ) as peer:
                token = changing.entrance.partition("?token=")[2]
                head = f"POST /new-topic HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
                peer.sendall(f"{head}Content-Length: {size}\r\n\r\n".encode())
                assert peer.recv(100).startswith(b"HTTP/1.1 %d " % status), "although nothing of it was sent"


@pytest.mark.parametrize("path", ["//evil.example/x", "/%5C%5Cevil.example/x", "///evil.example", "/x%22y"])
def test_a_page_asks_again_at_this_server_only(ui: UiProcess, path: str) -> None:
    page = ui.get(path)
    assert page.status == 404
    (again,) = re.findall(r'<main[^>]* hx-get="([^"]*)"', page.text)
    assert urlsplit(urljoin(ui.address + "/", html.unescape(again))).netloc == urlsplit(ui.address).netloc
    assert "\\" not in again


def test_an_address_that_others_reach_needs_a_password(tmp_path: Path) -> None:
    assert "so give --auth USER:FILE or --token-file FILE" in error_of("ui", "--host", "0.0.0.0", status=2)
    assert "so give --auth" in error_of("ui", "--host", "::", status=2)
    assert "expected USER:FILE" in error_of("ui", "--auth", "ann", status=2)
    assert "cannot read password from" in error_of("ui", "--auth", f"ann:{tmp_path / 'none'}", status=2)
    (tmp_path / "empty").write_text("\n")
    assert "has no token in its first line" in error_of("ui", "--token-file", str(tmp_path / "empty"), status=2)


def test_a_port_in_use_is_said(ui: UiProcess) -> None:
    port = ui.address.rpartition(":")[2]
    assert f"cannot listen on 127.0.0.1:{port}" in error_of("ui", "--port", port, status=2)


def test_it_starts_without_a_cluster_and_says_so(tmp_path: Path) -> None:
    with refused_port() as port, UiProcess(f"127.0.0.1:{port}") as ui:
        assert ui.get("/").status == 200
        eventually(lambda: "The cluster does not answer" in ui.get("/").text)  # once it was tried
        assert ui.get("/api/v3/clusters").status == 503
        assert "pykafka_ui_cluster_up 0.0" in ui.get("/metrics").text


def test_secrets_are_in_no_repr() -> None:
    assert "secret" not in repr(Credentials("ann", "secret", "secret-token"))


def test_what_loopback_is() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.9.9.9", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "")))
