"""MIT's Kerberos on this machine: a KDC of its own realm, its principals and keytabs, and the package `gssapi`.

The KDC comes out of Debian's packages, unpacked into the user's cache without root. `gssapi` has no wheel for Linux:
where it is not installed, it is built once against the headers of the same packages (a minute and a half), into the
cache as well. Raises Unavailable with the reason when something cannot be had.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.debian_packages import unpack
from tests.support.free_ports import free_ports
from tests.support.requirements import Unavailable, cache_directory
from tests.support.waiting import eventually

REALM = "PYKAFKA.EXAMPLE"
SERVICE = "kafka/localhost"
"""The brokers' principal, without its realm."""
_PACKAGES = (
    "krb5-kdc krb5-admin-server krb5-user libkrb5-dev krb5-multidev comerr-dev "
    "libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0"
).split()
_GSSAPI = "gssapi>=1.12"
_SITE = "site"
_BUILD_TIMEOUT_S = 1500  # a minute and a half where nothing else runs
_COMMAND_TIMEOUT_S = 30


class Kdc:
    """`with Kdc(directory) as kdc:` starts it; `with kdc.entered():` makes this process and its children use it."""

    def __init__(self, directory: Path, ticket_lifetime: str = "10h") -> None:
        """`ticket_lifetime`: the longest that it issues, in MIT's form, such as `10s`."""
        self.directory = directory
        self.lifetime = ticket_lifetime
        self.config = directory / "krb5.conf"
        self._root = _packages()
        self._server: subprocess.Popen[bytes] | None = None
        self._made: set[str] = set()
        self._libraries = os.pathsep.join(sorted({str(file.parent) for file in self._root.glob("usr/lib/*/*.so.*")}))

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.port,) = free_ports(1)
        self._write_configuration()
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "of the database")
        if (site := gssapi_site()) is not None:
            foretold = self.directory / _SITE
            foretold.mkdir(exist_ok=True)
            for entry in site.iterdir():
                (foretold / entry.name).symlink_to(entry)
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Again, on the same port, after `stop`."""
        log = (self.directory / "kdc.out").open("ab")
        with log:
            self._server = subprocess.Popen(
                [self._program("krb5kdc"), "-n", "-r", REALM], env=self.environment, stdout=log, stderr=log
            )
        eventually(lambda: b"commencing operation" in self._log().read_bytes())

    def stop(self) -> None:
        if self._server is not None:
            self._log().unlink(missing_ok=True)
            self._server.terminate()
            self._server.wait()
            self._server = None

    @property
    def environment(self) -> dict[str, str]:
        """For MIT's programs."""
        return {**os.environ, **self.variables(), "LD_LIBRARY_PATH": self._libraries}

    def variables(self) -> dict[str, str]:
        return _variables(self.directory)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """This process, and those that it starts, are of this realm, without a ticket, and can import `gssapi`."""
        wanted: dict[str, str] = self.variables()
        site = gssapi_site()
        if site is not None:
            wanted["PYTHONPATH"] = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
        with changed_environment(wanted):
            yield

    def principal(self, name: str, *options: str) -> Path:
        """Make a principal with a random key, such as `ann` or `kafka/localhost`, and return a keytab of it.

        One of this name that another test made goes: its keytabs and its options count no more.
        """
        if name in self._made:
            self.kadmin("delprinc", "-force", name)
        self._made.add(name)
        self.kadmin("addprinc", "-randkey", *options, name)
        return self.keytab(name)

    def keytab(self, name: str) -> Path:
        """A new keytab; the keys of the principal stay."""
        path = self.directory / f"{name.replace('/', '-')}-{len(list(self.directory.glob('*.keytab')))}.keytab"
        self.kadmin("ktadd", "-norandkey", "-k", str(path), name)
        return path

    def change_key(self, name: str) -> None:
        """Keytabs made before are of no use any more."""
        self.kadmin("cpw", "-randkey", name)

    def tickets_given(self, name: str) -> int:
        """How often the principal has asked for a first ticket, and got it."""
        return sum(
            "AS_REQ" in line and "ISSUE: " in line and f" {name}@" in line
            for line in self._log().read_text().splitlines()
        )

    def kadmin(self, *words: str) -> None:
        done = self._run("kadmin.local", "-r", REALM, *words)
        assert b"kadmin.local:" not in done.stderr or b"No policy specified" in done.stderr, done.stderr.decode()

    def kinit(self, name: str, keytab: Path, cache: Path, *options: str) -> None:
        """Get a ticket into the cache, as a person or cron does."""
        self._run("kinit", *options, "-c", f"FILE:{cache}", "-k", "-t", str(keytab), f"{name}@{REALM}")

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = [self._program(program), *arguments]
        done = subprocess.run(command, capture_output=True, env=self.environment, timeout=_COMMAND_TIMEOUT_S)
        if done.returncode:
            raise Unavailable(f"{' '.join(command)}: {done.stderr.decode(errors='replace').strip()}")
        return done

    def _program(self, name: str) -> str:
        (found,) = self._root.glob(f"usr/*bin/{name}")
        return str(found)

    def _log(self) -> Path:
        log = self.directory / "kdc.log"
        log.touch()
        return log

    def _write_configuration(self) -> None:
        (modules,) = self._root.glob("usr/lib/*/krb5/plugins/kdb")
        self.config.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            f" rdns = false\n dns_canonicalize_hostname = false\n udp_preference_limit = 1\n"
            f" ticket_lifetime = {self.lifetime}\n forwardable = true\n clockskew = 300\n"
            f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{self.port}\n }}\n"
            f"[domain_realm]\n localhost = {REALM}\n"
            f"[plugins]\n"
        )
        (self.directory / "kdc.conf").write_text(
            f"[kdcdefaults]\n kdc_listen = 127.0.0.1:{self.port}\n kdc_tcp_listen = 127.0.0.1:{self.port}\n"
            f"[realms]\n {REALM} = {{\n  database_name = {self.directory}/principal\n"
            f"  key_stash_file = {self.directory}/stash\n  acl_file = {self.directory}/acl\n"
            f"  max_life = {self.lifetime}\n  max_renewable_life = 7d\n }}\n"
            f"[dbmodules]\n db_module_dir = {modules}\n"
            f"[logging]\n kdc = FILE:{self.directory}/kdc.log\n"
        )


@contextlib.contextmanager
def foretold(directory: Path) -> Iterator[None]:
    """What is started now will be in the realm of a `Kdc(directory)`, and able to import `gssapi`, should one come."""
    site = directory / _SITE
    site.mkdir(exist_ok=True)  # Python forgets a directory of its path that was not there
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(site)]))
    with changed_environment({**_variables(directory), "PYTHONPATH": path}):
        yield


def _variables(directory: Path) -> dict[str, str]:
    return {
        "KRB5_CONFIG": str(directory / "krb5.conf"),
        "KRB5_KDC_PROFILE": str(directory / "kdc.conf"),
        "KRB5CCNAME": f"FILE:{directory / 'no-tickets'}",
        "KRB5RCACHENAME": f"file2:{directory / 'replays'}",
    }


def principal_of(name: str) -> str:
    """With the realm."""
    return f"{name}@{REALM}"


@functools.cache
def gssapi_site() -> Path | None:
    """The directory to put on `sys.path` for `import gssapi`; None where it is installed. It is there afterwards."""
    if importlib.util.find_spec("gssapi") is not None:
        return None
    root = _packages()
    key = hashlib.sha256(f"{_GSSAPI} {root} {sys.version}".encode()).hexdigest()[:12]
    site = cache_directory() / f"gssapi-{key}"
    with (cache_directory() / "gssapi.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not site.is_dir():
            _build_gssapi(root, site)
    sys.path.append(str(site))
    importlib.invalidate_caches()
    return site


def _build_gssapi(root: Path, site: Path) -> None:
    (libraries,) = (file.parent for file in root.glob("usr/lib/*/libgssapi_krb5.so.2"))
    headers = f"-I{root}/usr/include -I{root}/usr/include/mit-krb5 -DHAS_GSSAPI_EXT_H -O0 -g0"
    variables = {
        "GSSAPI_COMPILER_ARGS": headers,
        # The old kind of tag holds for what the library itself needs, too.
        "GSSAPI_LINKER_ARGS": f"-L{libraries} -lgssapi_krb5 -Wl,--disable-new-dtags,-rpath,{libraries}",
        "GSSAPI_MAIN_LIB": str(libraries / "libgssapi_krb5.so.2"),
    }
    with tempfile.TemporaryDirectory(dir=site.parent, prefix=f".{site.name}-") as scratch:
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-cache-dir",
            "--target",
            f"{scratch}/site",
            _GSSAPI,
        ]
        try:
            done = subprocess.run(
                command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"gssapi could not be built: {error}") from error
        if done.returncode:
            raise Unavailable(f"gssapi could not be built:\n{done.stderr[-2000:]}")
        Path(scratch, "site").rename(site)


def error_codes() -> dict[str, int]:
    """MIT's errors by the names in its header."""
    text = (_packages() / "usr/include/mit-krb5/krb5/krb5.h").read_text()
    return {name: int(code) for name, code in re.findall(r"#define (KRB5\w+)\s+\((-\d+)L\)", text)}


def _packages() -> Path:
    root = cache_directory() / "kerberos"
    if not root.is_dir():
        unpack(_PACKAGES, root, with_dependencies=True)
    return root


@contextlib.contextmanager
def changed_environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Of this process, for the block."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = text


def keytab_module(keytab: Path, principal: str, options: str = "") -> str:
    """A `sasl.jaas.config` of Java's login module."""
    return (
        "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true doNotPrompt=true "
        f'keyTab="{keytab}" principal="{principal}" {options};'
    )


def listener_settings(keytab: Path) -> dict[str, str]:
    """Of a broker that lets clients in by tickets for `SERVICE`, whose keys are in the keytab.

    On its listener BRIEF they have to log in again within a second (KIP-368).
    """
    module = keytab_module(keytab, principal_of(SERVICE))
    return {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://localhost:0,BRIEF://localhost:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,BRIEF:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "GSSAPI",
        "listener.name.sasl_plaintext.gssapi.sasl.jaas.config": module,
        "listener.name.brief.gssapi.sasl.jaas.config": module,
        "listener.name.brief.connections.max.reauth.ms": "1000",
    }


if __name__ == "__main__":  # what the first test would wait for
    try:
        gssapi_site()
    except Unavailable as missing:
        print(f"no Kerberos for the tests: {missing}")
