"""Opens the destination of a target: a directory, a Delta or Iceberg table, or a database.

The only module that knows all kinds of destinations. Libraries of an extra are imported only for those who use them.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Iterator
from dataclasses import replace
from urllib.parse import urlsplit

from broker.errors import ConfigError, PykafkaError
from broker.storage.object_stores import object_store_of
from broker.storage.storage import Storage, open_storage
from broker.storage.url_secrets import without_secrets
from spark_connector.loads.addresses import is_database_url, is_iceberg
from spark_connector.loads.bad_record_options import DeadLetterPlace
from spark_connector.loads.commit import CommitLog
from spark_connector.loads.dead_letters import DeadLetters, group_of
from spark_connector.loads.destination import Destination, LoadedDestination
from spark_connector.loads.files.directory import FilesCommitLog, FilesDestination
from spark_connector.loads.history import LoadedTable
from spark_connector.loads.record import LoadInterrupted, failed_load
from spark_connector.loads.request import Target

_CONNECT_TIMEOUT = 10.0  # seconds


@contextlib.contextmanager
def open_destination(target: Target) -> Iterator[LoadedDestination]:
    """The destination for as long as the block runs. Raises ConfigError and OffsetStoreError.

    OSErrors, and errors of the library behind the destination, are raised as LoadError or LoadInterrupted.
    """
    with _plain_os_errors(target):
        destination = _open(target)
        try:
            yield destination
        except Exception as error:
            plain = destination.plain_error(error)
            if plain is None:
                raise
            raise plain from error
        finally:
            destination.log.close()


@contextlib.contextmanager
def open_dead_letters(place: DeadLetterPlace, target: Target, loads: Destination) -> Iterator[DeadLetters]:
    """The table of dead letters of the loads of `target`, which are in `loads`, for as long as the block runs.

    Raises ConfigError.
    """
    there = Target(
        f"iceberg:{place.name}" if place.kind == "iceberg" else place.name,
        target.group,
        storage_options=target.storage_options if _is_in_same_storage(place.name, target.to) else {},
        format=place.kind,
    )
    if place.kind == "iceberg":
        place = replace(place, catalog=place.catalog or target.catalog)
        if place.catalog is None:
            raise ConfigError(
                f"dead_letters (--dead-letters): {place} needs a catalog: iceberg:CATALOG/NAMESPACE.TABLE"
            )
        there = replace(there, catalog=place.catalog)
    there = replace(there.check(), group=group_of(target.group, loads.url))
    with _plain_os_errors(there):
        table = _open(there)
    try:
        if place.kind == "delta":
            place = replace(place, name=table.url)
        yield DeadLetters(loads, table, str(place), target.group)
    finally:
        table.log.close()


def _is_in_same_storage(one: str, other: str) -> bool:
    """Whether two places take the same storage options; those of another kind of storage come from the environment."""
    stores = [object_store_of(place) or urlsplit(place).scheme for place in (one, other)]
    return stores[0] == stores[1]


def _shares_storage(place: str, target: Target) -> bool:
    """Whether a place is on this machine, or in the bucket or on the server that the target is in."""
    one, other = urlsplit(place.strip()), urlsplit(target.to.strip())
    return one.scheme in {"", "file", "local"} or (one.scheme, one.netloc) == (other.scheme, other.netloc)


def open_all_dead_letters(
    names: Iterable[str], target: Target, loads: Destination, opened: contextlib.ExitStack
) -> list[DeadLetters]:
    """The tables of dead letters that records of `loads` name, for as long as `opened` is.

    A record is no reason to connect to another storage, or to show it a login: such a table must be one of the target's
    `dead_letters`. Raises ConfigError.
    """
    places = [DeadLetterPlace.parse(name) for name in names]
    for place in places:
        if place.kind != "iceberg" and not (str(place) in target.dead_letters or _shares_storage(place.name, target)):
            raise ConfigError(
                f"the records of {loads.url} name dead letters in {without_secrets(place.name)}, which is another "
                f"storage. If loads have written them there, set dead_letters (--dead-letters '{place}')"
            )
    return [opened.enter_context(open_dead_letters(place, target, loads)) for place in places]


def loaded_tables(catalog: str, namespace: str | None = None) -> list[LoadedTable]:
    """The tables of a catalog of Iceberg that loads write; see loads/iceberg/iceberg_listing.py."""
    try:
        from spark_connector.loads.iceberg.iceberg_listing import list_tables
    except ModuleNotFoundError as error:
        raise ConfigError(f"catalogs need {error.name}: pip install 'pykafka-spark[iceberg]'") from error
    return list_tables(catalog, namespace)


def existing_format(place: Target) -> str:
    """`sql` for a database, `iceberg` for a table in a catalog, `delta` for the directory of a Delta table, else
    `parquet` for all kinds of files.

    Raises as `open_destination` does.
    """
    if is_iceberg(place.to):
        return "iceberg"
    if place.table is not None or is_database_url(place.to):
        return "sql"
    with _plain_os_errors(place):
        storage = open_storage(place.to, place.storage_options or {})
        _check_reachable(storage.url)
        return "delta" if storage.names("_delta_log") else "parquet"


def _open(target: Target) -> LoadedDestination:
    store = None if target.format == "sql" else object_store_of(target.to)
    if store is not None and not target.is_table:
        raise ConfigError(
            f"'{without_secrets(target.to)}': loads into files need a file system with atomic rename, a local "
            f"directory or hdfs://, which {store.scheme}:// is not. On an object store load into a table: format=delta "
            f"(pip install 'pykafka-spark[delta,{store.extra}]'), or iceberg:NAMESPACE.TABLE"
        )
    if not target.is_table:
        output = _open_output(target, "a load needs a file system with atomic rename: a local directory or hdfs://")
        log = _open_log(target, output)
        if output.names("_delta_log"):
            log.close()
            raise ConfigError(f"{output.shown} is a Delta table: use format=delta, or another directory")
        return FilesDestination(output, log, target.group)
    if store is not None:
        store.require()
    try:
        if target.format == "sql":
            from spark_connector.loads.database.database_table import open_database

            return open_database(target.address, target.group)
        if target.format == "iceberg":
            from spark_connector.loads.iceberg.iceberg_table import open_iceberg

            return open_iceberg(target.catalog or "", target.iceberg_name, target.group, target.keep_snapshots)
        from spark_connector.loads.delta.delta_table import open_delta
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"format={target.format} needs {error.name}: pip install 'pykafka-spark[{target.format}]'"
        ) from error
    where = "a Delta table must lie in a local directory, on hdfs://, s3://, gs:// or abfs://"
    return open_delta(_open_output(target, where), target.group)


def _open_output(target: Target, needed: str) -> Storage:
    output = open_storage(target.to, target.storage_options or {})
    if not output.renames_directories and object_store_of(output.url) is None:
        raise ConfigError(f"'{without_secrets(target.to)}': {needed}")
    _check_reachable(output.url)
    return output


def _open_log(target: Target, output: Storage) -> CommitLog:
    if target.zookeeper_connect is None:
        return FilesCommitLog(output, target.group)
    # kazoo only for those who keep offsets in ZooKeeper
    from spark_connector.loads.files.zookeeper_log import ZooKeeperCommitLog
    from spark_connector.offset_store.zookeeper import ZooKeeperOffsetStore

    return ZooKeeperCommitLog(ZooKeeperOffsetStore(target.zookeeper_connect), target.group)


def _check_reachable(url: str) -> None:
    """Fail within seconds when no NameNode answers: hdfs-native retries for three minutes without a word."""
    parts = urlsplit(url.partition("#")[0])
    try:
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"'{without_secrets(url)}': {error}") from error
    if host is None or port is None:
        return  # a local path, or a name service of HADOOP_CONF_DIR
    try:
        socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT).close()
    except OSError as error:
        shown = without_secrets(url)
        raise LoadInterrupted(f"nothing answers at {host}:{port}, the NameNode of '{shown}': {error}") from error


@contextlib.contextmanager
def _plain_os_errors(target: Target) -> Iterator[None]:
    try:
        yield
    except PykafkaError:
        raise  # some of them are OSErrors too
    except OSError as error:
        where = target.address.shown if target.format == "sql" else without_secrets(target.to)
        raise failed_load(f"{where}: {type(error).__name__}: {error}", error) from error
