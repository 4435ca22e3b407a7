"""docs/how-to/spark-on-several-machines.md does what it says: each command runs on the host that it names, in order.

The hosts share nothing but the code. Where the page has `/opt/pykafka`, they have this environment.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import HOME, PYKAFKA, Host, Network, Server
from tests.support.requirements import Unavailable, give_up
from tests.support.snippets import Snippet, matches, snippets
from tests.support.source_tree import ROOT
from tests.support.spark_home import shared_spark_home
from tests.support.waiting import eventually

PAGE = ROOT / "docs" / "how-to" / "spark-on-several-machines.md"
ON = re.compile(r"# on ([\w, ]+)\n")
SERVERS = {
    "pykafka broker start": " listening on ",
    "spark-class org.apache.spark.deploy.master": "I have been elected leader",
    "spark-class org.apache.spark.deploy.worker": "Successfully registered with master",
    "spark-submit --master spark://master:7077 --class org.apache.spark.sql.connect": "Spark Connect server started",
}
"""What begins a server's command → what it says when it is there."""
REMEMBERED = re.compile(r"^(?:export |set -a).*\n", re.MULTILINE)
"""Lines that change the environment of a terminal for what is typed later."""
_WARN_APART = "-Xlog:disable -Xlog:all=warning:stderr"
"""Java's warnings are not among what a command prints."""
BLANKS = re.compile(" {2,}")
_PATIENCE_S = 600.0

HOSTS = {"broker", "master", "worker1", "worker2", "driver"}


def steps() -> list[tuple[list[str], Snippet]]:
    """The hosts of each fence that is run, and the fence."""
    found = []
    for one in snippets(PAGE):
        if one.language in {"bash", "python"}:
            on = ON.match(one.text)
            assert on is not None, f"the page does not say on which host: {one.text}"
            found.append((re.split(r", | and ", on[1]), one))
    return found


class Site:
    """The hosts of the page, with a terminal on each."""

    def __init__(self, network: Network, programs: Path) -> None:
        self._network = network
        self._programs = programs
        self._typed: dict[str, str] = {}
        self._pasted = ""

    def run(self, host: str, snippet: Snippet) -> str:
        """What the snippet prints on the host. AssertionError if it fails."""
        text = snippet.text.replace("/opt/pykafka/bin/python", sys.executable)
        if snippet.language == "python":
            self._pasted += text
            return self._host(host).run(
                *self._shell(host, f"python -c {shlex.quote(self._pasted)}"), timeout=_PATIENCE_S
            )
        server = next((one for one in SERVERS if re.search(f"^{one}", text, re.MULTILINE)), None)
        command = self._shell(host, text if server is None else text.replace(server, f"exec {server}"))
        self._typed[host] = self._typed.get(host, "") + "".join(REMEMBERED.findall(text))
        if server is None:
            return self._host(host).run(*command, timeout=_PATIENCE_S)
        wait(self._host(host).serve(f"server-{len(self._network.servers)}", *command), SERVERS[server])
        return ""

    def _host(self, name: str) -> Host:
        return self._network.host(name)

    def _shell(self, host: str, text: str) -> list[str]:
        home = shared_spark_home()
        begun = (
            f"cd {HOME}\n"
            f"export PATH={self._programs}:$PATH SPARK_HOME={home.environment()['SPARK_HOME']}\n"
            f'export JAVA_TOOL_OPTIONS="$JAVA_TOOL_OPTIONS {home.java_flags} {_WARN_APART}"\n'
        )
        return ["bash", "-euo", "pipefail", "-c", begun + self._typed.get(host, "") + text]


def wait(server: Server, ready: str) -> None:
    eventually(lambda: ready in server.output or server.process.poll() is not None, _PATIENCE_S)
    assert ready in server.output, server.output[-4000:]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    pytest.importorskip("moto.server", reason="the object store is moto's")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "pykafka").write_text(f'#!/bin/sh\nexec {shlex.join(PYKAFKA)} "$@"\n')
    for name in ("spark-class", "spark-submit"):
        (programs / name).write_text(f'#!/bin/sh\nexec "$SPARK_HOME/bin/{name}" "$@"\n')
    (programs / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    try:
        with Network(tmp_path) as network:
            store = network.host("store")
            server = store.serve("moto", sys.executable, "-m", "moto.server", "-H", store.address, "-p", "9000")
            wait(server, "Running on")
            store.run("curl", "-sf", "-X", "PUT", f"http://{store.address}:9000/lake")
            yield Site(network, programs)
    except Unavailable as missing:
        give_up(str(missing))


def test_each_command_names_its_hosts_and_servers_come_before_their_clients() -> None:
    found = steps()
    assert set().union(*(hosts for hosts, _ in found)) == HOSTS
    started = [command for _, one in found for command in SERVERS if re.search(f"^{command}", one.text, re.MULTILINE)]
    assert started == list(SERVERS)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_every_command_does_what_the_page_shows(site: Site) -> None:
    for hosts, snippet in steps():
        for host in hosts:
            printed = site.run(host, snippet)
        if snippet.printed is not None:
            wanted, found = BLANKS.sub("  ", snippet.printed), BLANKS.sub("  ", printed)
            assert matches(wanted, found), f"{snippet.text}\nprinted\n{printed}"
