"""What is written of a load's arguments by the declaration: the signature and the text of `load`, and a table."""

from __future__ import annotations

import re
import textwrap

from spark_connector.loads.arguments import REQUIRED, Declared, arguments_of, meaning
from spark_connector.loads.request import Load, Target
from tests.support.markdown_table import table
from tests.support.source_tree import ROOT

ARGUMENTS = arguments_of(Target, Load)
PAGE = ROOT / "spark_connector" / "load.py"
_WRITTEN = re.compile(
    r"(?<=def load\(\n    spark: SparkSession,\n    \*,\n)(?P<parameters>.*?)(?=    on_phase)"
    r'|(?<=    """Load all new records and commit them; see the module\.\n\n)(?P<text>.*?)(?=\n    Raises )',
    re.DOTALL,
)


def type_of(one: Declared) -> str:
    return one.type.__name__ if isinstance(one.type, type) else str(one.type).replace("collections.abc.", "")


def parameters() -> str:
    """Those that are required come first."""
    rows = sorted(ARGUMENTS.values(), key=lambda one: one.default is not REQUIRED)
    shown = {one.name: "" if one.default is REQUIRED else f" = {one.default!r}".replace("'", '"') for one in rows}
    return "".join(f"    {one.name}: {type_of(one)}{shown[one.name]},\n" for one in rows)


def text() -> str:
    """A line for each argument, and for what it goes with."""
    return "".join(f"{_wrapped(one)}\n" for one in ARGUMENTS.values())


def _wrapped(one: Declared) -> str:
    said = f"`{one.name}`: {meaning(one, in_python)}"
    return textwrap.fill(said, 120, initial_indent="    ", subsequent_indent="    ")


def goes_with(one: Declared) -> str:
    name, *values = one.argument.goes_with
    return in_python(name, " or ".join(values))


def in_python(name: str, value: str) -> str:
    return f"`{name}={value}`" if value else f"`{name}`"


def written(source: str) -> str:
    """The module of `load` with what follows from the declaration."""
    return _WRITTEN.sub(lambda found: parameters() if found["parameters"] is not None else text(), source)


def load_arguments() -> str:
    """A row for each argument."""
    rows = (
        [
            f"`{one.name}`",
            f"`{one.option}`" if one.argument.option is not None else "`--bootstrap-server`",
            "required" if one.default is REQUIRED else f"`{one.default}`" if one.default not in (None, False) else "",
            goes_with(one) if one.argument.goes_with else "",
            meaning(one, in_python),
        ]
        for one in ARGUMENTS.values()
    )
    return table(["argument", "option", "default", "goes with", "meaning"], rows)
