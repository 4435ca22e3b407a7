"""What Java's patterns and RE2/J's match: the judges of broker/patterns, in a JVM with Spark's jars.

One of them has RE2/J, another a compiler, so that a Java without one is enough.
"""

from __future__ import annotations

import base64
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.java_process import SPARK_JARS, JavaProcess, exceptions_of_py4j
from tests.support.requirements import Unavailable

JAVA = "java.util.regex.Pattern"
_JARS = ("py4j", "janino", "commons-compiler", "hadoop-client-runtime")
_RE2J = "com/google/re2j/Pattern.class"
_SOURCE = Path(__file__).with_name("PatternJudge.java")


class PatternJudge(JavaProcess):
    """Raises Unavailable when it cannot be had."""

    def __init__(self) -> None:
        super().__init__(":".join(str(jar) for name in _JARS for jar in SPARK_JARS.glob(f"{name}-*.jar")))
        compiler = self.jvm.org.codehaus.janino.SimpleCompiler()
        with exceptions_of_py4j():
            compiler.cook(_SOURCE.read_text())
            self._judge: Any = compiler.getClassLoader().loadClass("PatternJudge").newInstance()

    def matches(self, kind: str, cases: Sequence[tuple[str, Sequence[str]]]) -> list[list[bool] | None]:
        """Which names each pattern matches as a whole; None where it is no pattern. `kind`: JAVA or `re2j()`."""
        answers = self._asked(f"{kind}\t", [[pattern, *names] for pattern, names in cases])
        return [None if answer.startswith("!") else [one == "1" for one in answer] for answer in answers]

    def replaced(self, cases: Sequence[tuple[str, str, Sequence[str]]]) -> list[list[str] | None]:
        """What Java's `name.replaceAll(pattern, replacement)` gives for each name; None where it raises."""
        answers = self._asked(f"{JAVA}\treplace", [[pattern, by, *names] for pattern, by, names in cases])
        return [
            None if answer.startswith("!") else [base64.b64decode(one).decode() for one in answer.split("\t")]
            for answer in answers
        ]

    def _asked(self, head: str, lines: Sequence[Sequence[str]]) -> list[str]:
        asked = ("\t".join(base64.b64encode(one.encode()).decode() for one in line) for line in lines)
        with exceptions_of_py4j():
            answers = str(self._judge.apply("\n".join([head, *asked]))).split("\n")[:-1]
        assert len(answers) == len(lines)
        return answers


def re2j() -> str:
    """The name of RE2/J's class in one of Spark's jars. Raises Unavailable."""
    for jar in SPARK_JARS.glob("hadoop-client-runtime-*.jar"):
        with zipfile.ZipFile(jar) as found:
            if name := next((name for name in found.namelist() if name.endswith(_RE2J)), ""):
                return name.removesuffix(".class").replace("/", ".")
    raise Unavailable("RE2/J is in none of Spark's jars")
