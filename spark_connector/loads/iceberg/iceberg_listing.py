"""Lists the tables of a catalog that loads write, by their properties. Changes nothing, and reads no data."""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchIcebergTableError, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier

from broker.errors import ConfigError
from broker.storage.url_secrets import text_without_secrets
from spark_connector.loads.addresses import IcebergName
from spark_connector.loads.history import LoadedTable
from spark_connector.loads.iceberg.iceberg_catalog import first_line, open_catalog, plain_error
from spark_connector.loads.iceberg.iceberg_log import groups_of, state_of


def list_tables(catalog: str, namespace: str | None = None) -> list[LoadedTable]:
    """One for each group of each table in the namespace, or in all, and in those below; sorted by name.

    Tables without loads are left out. A table that cannot be read has an `error`. Raises ConfigError, LoadError.
    """
    opened = open_catalog(catalog)
    try:
        start = tuple(namespace.split(".")) if namespace else ()
        found = [one for name in _tables(opened, start, set()) for one in _loads_in(opened, IcebergName(name))]
    except NoSuchNamespaceError as error:
        raise ConfigError(f"catalog '{catalog}' has no namespace '{namespace}'") from error
    except Exception as error:
        raise plain_error(f"catalog {catalog}", error) or error from error
    finally:
        opened.close()
    return sorted(found, key=lambda one: (one.table, one.group))


def _tables(catalog: Catalog, namespace: Identifier, seen: set[Identifier]) -> Iterator[Identifier]:
    """The names of all tables, each once: some catalogs list namespaces of every depth, others those of one."""
    if namespace:
        yield from sorted(catalog.list_tables(namespace))
    for below in sorted(catalog.list_namespaces(namespace)):
        if below not in seen and below != namespace:
            seen.add(below)
            yield from _tables(catalog, below, seen)


def _loads_in(catalog: Catalog, name: IcebergName) -> list[LoadedTable]:
    try:
        table = catalog.load_table(name.identifier)
        return [_load_of(table, name.shown, group) for group in groups_of(table.metadata)]
    except (NoSuchTableError, NoSuchIcebergTableError):
        return []  # it was dropped a moment ago, or is a table of another kind
    except Exception as error:  # whatever a damaged table makes of pyiceberg
        return [LoadedTable(name.shown, error=text_without_secrets(f"{type(error).__name__}: {first_line(error)}"))]


def _load_of(table: Table, shown: str, group: str) -> LoadedTable:
    state, snapshot = state_of(table.metadata, group, shown), table.current_snapshot()
    counts = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
    offsets: dict[str, dict[int, int]] = {}
    for tp, offset in sorted(state.offsets.items()):
        offsets.setdefault(tp.topic, {})[tp.partition] = offset
    rows, files = (int(counts[name]) if name in counts else None for name in ("total-records", "total-data-files"))
    record = state.record
    return LoadedTable(
        shown,
        group,
        state.number,
        record.load_id if record else "",
        record.created_ms if record else -1,
        rows,
        files,
        offsets,
    )
