"""Which directories are no place for a load, because readers would not see it, or would lose what they see now.

Spark's readers are the judge; tests/spark_connector/loads/test_visibility.py asks them. Called before a load writes
anything. Raises ConfigError, which says what to do.
"""

from __future__ import annotations

import contextlib

from broker.errors import ConfigError
from spark_connector.loads.record import LoadId, published_directory
from spark_connector.storage import Storage

_ELSEWHERE = "load into another directory"
_OF_A_STREAM = "_spark_metadata"
_TABLES = {"_delta_log": "Delta", ".hoodie": "Hudi"}
"""What only tables of this kind have. Their readers go by their own log of files."""
_OF_LOADS = "_staging"


def refuse_unseen(output: Storage) -> None:
    """Raise unless readers of the directory would see a load in it, and all that they see now."""
    if output.exists(_OF_A_STREAM):
        raise ConfigError(
            f"{output.shown} is the output of a Spark stream: its readers see only the files that {_OF_A_STREAM} "
            f"lists, and would not see this load. {_ELSEWHERE.capitalize()} (readers of both can union them)"
        )
    if (kind := _table(output)) is not None:
        raise ConfigError(f"{output.shown} is a {kind} table, whose readers would not see this load: {_ELSEWHERE}")
    has_loads = False
    for name, size in output.sizes("").items():
        if name.startswith(published_directory("")):
            has_loads = True
        elif not _is_hidden(name) and (found := _first_file(output, name, size)):
            raise ConfigError(
                f"{output.shown} holds {found}, which no load wrote. Beside load=…, Spark's readers would no longer "
                f"see it, or could read neither: move it away, or {_ELSEWHERE}"
            )
    if not has_loads:
        refuse_within_table(output)


def refuse_within_table(output: Storage) -> None:
    """Raise if the directory lies within a table, whose VACUUM would delete its files, or among the loads of others."""
    for above, way in output.parents():
        if any(map(_is_hidden, way.split("/"))):
            return  # nobody who reads or cleans what is above looks there
        is_iceberg = any(name.endswith(".metadata.json") for name in _names(above, "metadata"))
        kind = _table(above) or ("Iceberg" if is_iceberg else None)
        if kind is not None:
            raise ConfigError(
                f"{output.shown} lies within the {kind} table {above.shown}, which deletes files that are not its own "
                f"when it is cleaned: {_ELSEWHERE}"
            )
        if _has_loads(above):
            raise ConfigError(
                f"{output.shown} lies within {above.shown}, the output of other loads: Spark could no longer read that "
                f"directory. {_ELSEWHERE.capitalize()}"
            )


def _table(directory: Storage) -> str | None:
    return next((kind for name, kind in _TABLES.items() if directory.exists(name)), None)


def _has_loads(directory: Storage) -> bool:
    """Whether loads were written into it, or are being written. Other programs have a directory `_staging`, too."""
    if not directory.exists(_OF_LOADS):
        return False
    staged = [name for kind in _names(directory, _OF_LOADS) for name in _names(directory, f"{_OF_LOADS}/{kind}")]
    published = [name.removeprefix(published_directory("")) for name in _names(directory, "")]
    return any(LoadId.parse(name) is not None for name in (*published, *staged))


def _names(directory: Storage, path: str) -> list[str]:
    """Without an error for what this user may not list."""
    with contextlib.suppress(PermissionError):
        return directory.names(path)
    return []


def _first_file(output: Storage, name: str, size: int | None) -> str | None:
    """The file `name`, or the first below the directory of this name, that readers find and that is not empty."""
    if size is not None:
        return name if size else None
    with contextlib.suppress(PermissionError):
        return next((f"{name}/{file}" for file, found in output.data_files(name).items() if found), None)
    return None


def _is_hidden(name: str) -> bool:
    return (name.startswith("_") and "=" not in name) or name.startswith(".") or name.endswith("._COPYING_")
