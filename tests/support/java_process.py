"""A JVM of our own, and calls into it by py4j, which comes with PySpark."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pyspark
from py4j import java_gateway, protocol
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from tests.support.requirements import Unavailable

SPARK_JARS = Path(pyspark.__file__).parent / "jars"


class JavaProcess:
    """`with JavaProcess(classpath) as java:` calls go to `java.jvm`. Python's lists, dicts and sets become Java's.

    Raises Unavailable when Java cannot be had."""

    def __init__(self, classpath: str, *options: str) -> None:
        home = os.environ.get("JAVA_HOME")
        try:
            port, token, self._process = launch_gateway(
                jarpath=str(next(SPARK_JARS.glob("py4j-*.jar"))),
                classpath=classpath,
                java_path=str(Path(home) / "bin" / "java") if home else "java",
                javaopts=["-Xmx256m", "-XX:TieredStopAtLevel=1", *options],
                die_on_exit=True,
                enable_auth=True,
                redirect_stderr=subprocess.DEVNULL,
                return_proc=True,
            )
        except OSError as error:
            raise Unavailable(f"Java: {error}") from error
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True)
        )
        self.jvm: Any = self._gateway.jvm

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._gateway.shutdown()
        self._process.stdin.close()  # it ends then
        self._process.wait()


@contextlib.contextmanager
def exceptions_of_py4j() -> Iterator[None]:
    """Exceptions are py4j's within: PySpark, once it runs in this process, looks for those of any JVM in its own."""
    changed = java_gateway.get_return_value
    java_gateway.get_return_value = protocol.get_return_value
    try:
        yield
    finally:
        java_gateway.get_return_value = changed
