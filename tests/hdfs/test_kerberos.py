"""A real HDFS that asks for Kerberos: whoever has a ticket, or a keytab that the library is told of, may store.

Slow: it starts a NameNode and a DataNode of its own (ten seconds).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hdfs import MiniHdfs
from tests.support.kerberos import Kdc, principal_of
from tests.support.requirements import Unavailable, give_up
from tests.support.source_tree import ROOT

pytestmark = [pytest.mark.hdfs, pytest.mark.slow]

# In a process of its own: the library reads Hadoop's settings and the tickets once.
_STORE = """
import sys
from broker.storage.storage import open_storage
storage = open_storage(sys.argv[1], {})
storage.make_directory("offsets")
storage.create("offsets/1", b"what was read")
print(storage.read("offsets/1"))
"""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, kerberos: Kdc) -> Iterator[MiniHdfs]:
    keytab = str(kerberos.principal("hdfs/localhost"))
    daemons = {
        f"dfs.{daemon}.{name}": text
        for daemon in ("namenode", "datanode")
        for name, text in (("kerberos.principal", principal_of("hdfs/localhost")), ("keytab.file", keytab))
    }
    settings = {
        **daemons,
        "hadoop.security.authentication": "kerberos",
        "hadoop.security.authorization": "true",
        "dfs.block.access.token.enable": "true",
        "dfs.data.transfer.protection": "authentication",
        "ignore.secure.ports.for.testing": "true",
        "dfs.permissions.enabled": "false",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.krb5.conf={kerberos.config}")
        try:
            cluster = MiniHdfs(tmp_path_factory.mktemp("hdfs"), settings)
        except Unavailable as missing:
            give_up(f"no HDFS: {missing}")
        with cluster:
            patch.setenv("HADOOP_CONF_DIR", str(cluster.configuration))
            yield cluster


def stored(hdfs: MiniHdfs, name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _STORE, f"{hdfs.uri}/{name}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_the_ticket_of_kinit_lets_store(
    secured: MiniHdfs, kerberos: Kdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = stored(secured, "nobodys")
    assert refused.returncode
    assert "No Kerberos credentials available" in refused.stderr
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'tickets'}")
    kerberos.kinit("kate", kerberos.principal("kate"), tmp_path / "tickets")
    done = stored(secured, "kates")
    assert done.stdout == "b'what was read'\n", done.stderr


def test_a_keytab_lets_store_without_kinit(
    secured: MiniHdfs, kerberos: Kdc, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'tickets'}")
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(kerberos.principal("leo")))
    done = stored(secured, "leos")
    assert done.stdout == "b'what was read'\n", done.stderr
