"""Names a table in a catalog of pyiceberg's own configuration, and opens the catalog.

    iceberg:lake.orders  with catalog=prod   the table lake.orders in the catalog `prod`

Settings of catalogs, and their secrets, are pyiceberg's: `.pyiceberg.yaml` and PYICEBERG_CATALOG__<NAME>__….
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog import Catalog, infer_catalog_type, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.utils.config import Config

from broker.errors import ConfigError
from broker.storage.url_secrets import text_without_secrets
from spark_connector.loads.addresses import IcebergName
from spark_connector.loads.record import LoadError, failed_load

_KINDS = ("sql", "rest", "glue", "hive")
_LIBRARIES = frozenset(
    "pyiceberg pyiceberg_core pydantic_core pydantic sqlalchemy sqlite3 requests urllib3 botocore boto3 thrift pyarrow "
    "fsspec aiobotocore tenacity".split()
)


@dataclass(frozen=True)
class IcebergPlace:
    """A table, which need not exist yet, in an open catalog."""

    catalog: Catalog
    name: IcebergName

    def table(self) -> Table | None:
        """The table as it is now; None when there is none. Raises LoadError when it cannot be opened."""
        try:
            return self.catalog.load_table(self.name.identifier)
        except NoSuchTableError:
            return None
        except Exception as error:
            raise plain_error(self.name.shown, error) or error from error

    def new_location(self) -> str:
        """The directory in which a new table would lie, as far as the catalog's settings and the namespace tell."""
        try:
            properties = self.catalog.load_namespace_properties(self.name.identifier[:-1])
        except NoSuchNamespaceError:
            properties = {}
        except Exception as error:
            raise plain_error(self.name.shown, error) or error from error
        return str(properties.get("location") or self.catalog.properties.get("warehouse", ""))

    @property
    def shown(self) -> str:
        return self.name.shown

    @property
    def is_glue(self) -> bool:
        return self.catalog.properties.get("type") == "glue"

    def close(self) -> None:
        self.catalog.close()


def open_catalog(name: str) -> Catalog:
    """Raises ConfigError for a catalog that is not configured, or of a kind that a load cannot use."""
    try:
        settings = Config().get_catalog_config(name)
    except Exception as error:  # of the parser, or an AttributeError for a file that is empty
        text = text_without_secrets(f"{type(error).__name__}: {first_line(error)}")
        raise ConfigError(f".pyiceberg.yaml or a variable PYICEBERG_… cannot be read: {text}") from error
    if settings is None:
        raise ConfigError(
            f"no catalog '{name}' is configured: define it in .pyiceberg.yaml (in PYICEBERG_HOME, the home directory "
            f"or the working directory), or by the environment (PYICEBERG_CATALOG__{name.upper()}__TYPE and "
            f"PYICEBERG_CATALOG__{name.upper()}__URI)"
        )
    _check_kind(name, settings)
    try:
        return load_catalog(name, **{key: value for key, value in settings.items() if isinstance(value, str)})
    except ModuleNotFoundError as error:
        raise ConfigError(f"catalog '{name}' needs {error.name}: install it beside pyiceberg") from error
    except Exception as error:  # whatever the library behind a kind of catalog raises when it connects
        text = f"catalog '{name}' cannot be opened: {first_line(error)}"
        raise (
            failed_load(text, error) if _is_from_library(error) else ConfigError(text_without_secrets(text))
        ) from error


def _check_kind(name: str, settings: Mapping[str, Any]) -> None:
    kind = settings.get("type")
    if "py-catalog-impl" in settings:
        kind = f"py-catalog-impl ({settings['py-catalog-impl']})"
    elif kind is None:
        try:
            inferred = infer_catalog_type(name, dict(settings))
        except ValueError as error:
            raise ConfigError(f"catalog '{name}': {text_without_secrets(str(error))}") from error
        kind = inferred.value if inferred else None
    if str(kind).lower() not in _KINDS:
        why = "renaming a file, which is no atomic commit on most stores" if kind == "hadoop" else "rules of its own"
        raise ConfigError(
            f"catalog '{name}' is of type {kind}, which commits by {why}: loads need a catalog of type "
            f"{', '.join(_KINDS)}"
        )


def plain_error(shown: str, error: Exception) -> LoadError | None:
    """The LoadError for an error of pyiceberg or of a library behind it; None for any other error."""
    if not _is_from_library(error):
        return None
    return failed_load(f"the Iceberg table {shown}: {type(error).__name__}: {first_line(error)}", error)


def first_line(error: Exception) -> str:
    """SQLAlchemy's errors quote the database's, and then the statement."""
    return str(getattr(error, "orig", None) or error).strip().partition("\n")[0]


def _is_from_library(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in _LIBRARIES or isinstance(error, OSError)
