"""The console command `pykafka pack`: what executors need, as one archive for `spark.archives`.

It holds pykafka and the packages it needs, as they are installed here, in one directory: on an executor
`spark.executorEnv.PYTHONPATH` names it. So executors have what the driver has, of the same versions, and need nothing
but a Python of this release on a machine of this kind. PySpark is left out: the cluster brings it.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from broker.errors import ConfigError
from broker.tools.checkup import FOR_DEVELOPERS, PACKAGE
from broker.tools.client_options import JsonOutput, option
from broker.tools.output import print_json

_NAME: Final = "pykafka"
_OURS: Final = ("broker", "spark_connector", "pyspark_pykafka.py")
_OF_THE_CLUSTER: Final = frozenset({"pyspark", "py4j", PACKAGE})
_OF_DRIVERS: Final = FOR_DEVELOPERS | {"ui", "java", "connect", "demo", "notebook"}
_REQUIREMENT: Final = re.compile(r"\s*([\w.-]+)\s*(?:\[([^\]]*)\])?")
_EXTRA: Final = re.compile(r"""extra\s*==\s*['"]([\w.-]+)['"]""")


def pack(
    output: Annotated[
        Path | None,
        option("The archive. Default: a name that says for which Python and machine.", "FILE", "--output", "-o"),
    ] = None,
    extra: Annotated[
        list[str] | None, option("Only this extra of pykafka (repeatable). Default: all that are installed.", "NAME")
    ] = None,
    as_json: JsonOutput = False,
) -> None:
    """Make an archive of pykafka and what it needs, for Spark's executors, and print how to use it.

    \b
    Examples:
      pykafka pack
      pykafka pack --extra s3 --extra delta --output pykafka.tar.gz
    """
    interpreter = f"python{sys.version_info.major}.{sys.version_info.minor}"
    made = output or Path(f"{_NAME}-{interpreter}-{sysconfig.get_platform()}.tar.gz")
    if not made.name.endswith((".tar.gz", ".tgz")):
        raise ConfigError(f"--output {made}: Spark unpacks what is named .tar.gz or .tgz")
    write_archive(made, extra)
    settings = {"spark.archives": f"{made.absolute()}#{_NAME}", "spark.executorEnv.PYTHONPATH": _NAME}
    if as_json:
        print_json({"archive": str(made), "PYSPARK_PYTHON": interpreter, "settings": settings})
        return
    typer.echo(f"# {made}, {made.stat().st_size / 1e6:,.0f} MB: for executors with Python of this release and system")
    typer.echo(f"export PYSPARK_PYTHON={interpreter}; unset PYSPARK_DRIVER_PYTHON")
    for name, value in settings.items():
        typer.echo(f"--conf {name}={value}")
    found = shutil.which(interpreter)
    if found is None or Path(found).parent != Path(sys.executable).parent:
        typer.echo(f"# Here {interpreter} is {found or 'nothing'}, and the driver plans with it, so set first")
        typer.echo(f'export PATH={Path(sys.executable).parent}:"$PATH"')


def write_archive(archive: Path, extras: Sequence[str] | None = None) -> None:
    """All or nothing. Raises ConfigError where pykafka is not installed, OSError."""
    scratch = archive.with_name(f".{archive.name}.{os.getpid()}")
    try:
        with tarfile.open(scratch, "w:gz", compresslevel=1) as made:
            for name, path in sorted(dict(_files(extras)).items()):
                made.add(path, name, recursive=False)
        scratch.replace(archive)
    finally:
        scratch.unlink(missing_ok=True)


def _files(extras: Sequence[str] | None) -> Iterator[tuple[str, Path]]:
    """(path in the archive, file). Ours are the modules that run here: of a clone no record of an
    installation names the files."""
    root = Path(__file__).parents[2]
    for top in _OURS:
        for path in (root / top).rglob("*") if (root / top).is_dir() else [root / top]:
            if path.is_file() and "__pycache__" not in path.parts:
                yield str(path.relative_to(root)), path
    for distribution in _distributions(extras):
        for file in distribution.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts and (path := Path(file.locate())).is_file():
                yield str(file), path


def _distributions(extras: Sequence[str] | None) -> Iterable[importlib.metadata.Distribution]:
    """What pykafka needs, and what its extras need, as far as it is installed here, and what these need in turn."""
    try:
        waiting = list(_needs(PACKAGE, None if extras is None else frozenset(extras)))
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(f"nothing says what pykafka needs: install it here, pip install {PACKAGE}") from None
    found: dict[str, importlib.metadata.Distribution] = {}
    seen = set()
    while waiting:
        name, its_extras = waiting.pop()
        if (name, its_extras) in seen or name in _OF_THE_CLUSTER:
            continue
        seen.add((name, its_extras))
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # of an extra that is not installed, or for another system or Python
        waiting += _needs(name, its_extras)
    return found.values()


def _needs(name: str, extras: frozenset[str] | None) -> Iterator[tuple[str, frozenset[str]]]:
    """(name, its extras) of what a distribution needs with these extras; None: all that are for executors."""
    for requirement in importlib.metadata.requires(name) or ():
        text, _, marker = requirement.partition(";")
        extra, match = _EXTRA.search(marker), _REQUIREMENT.match(text)
        asked = extra is None or (extra[1] not in _OF_DRIVERS if extras is None else extra[1] in extras)
        if match and asked:
            yield re.sub(r"[-_.]+", "-", match[1]).lower(), frozenset(re.findall(r"[\w.-]+", match[2] or ""))
