"""Makes `format("pykafka")` known to Spark, which imports every `pyspark_*` module and registers its `DefaultSource`.

If the import of one such module fails, all such sources of the session are silently disabled. So this module imports
only pyspark. The connector and its dependencies are imported at the first use of the format, where a missing package
raises a clear error.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import cast

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """Delegates to a `spark_connector.source.PykafkaSource`. It is pickled with it, so what `schema` found holds."""

    _made: DataSource | None = None

    def __reduce__(self) -> tuple[object, ...]:
        """Goes to executors beside the reader, and is unpickled first: so they say what they lack."""
        made = self._source()
        shipped = importlib.import_module("spark_connector.shipped").shipped
        return cast(tuple[object, ...], shipped(_remade, self.options, made))

    @classmethod
    def name(cls) -> str:
        return "pykafka"

    def schema(self) -> StructType | str:
        return self._source().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._source().reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return self._source().streamReader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return self._source().writer(schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return self._source().streamWriter(schema, overwrite)

    def _source(self) -> DataSource:
        if self._made is None:
            self._made = self._new_source()
        return self._made

    def _new_source(self) -> DataSource:
        try:
            module = importlib.import_module("spark_connector.source")
        except ModuleNotFoundError as error:
            if (error.name or "").startswith(("spark_connector.", "broker.")):
                raise  # a fault of ours
            raise _other_python(error) from None
        return cast(DataSource, module.PykafkaSource(self.options))


def _remade(options: dict[str, str], made: DataSource) -> DefaultSource:
    source = DefaultSource(options)
    source._made = made
    return source


def _other_python(error: ModuleNotFoundError) -> ImportError:
    """What a user can do about a Python of Spark's that has this file, in a clone or a zip, but not what it needs."""
    with contextlib.suppress(ImportError):
        importlib.import_module("spark_connector.spark_worker").hide_traceback()
    return ImportError(
        f"Spark runs its Python code with {sys.executable}, which has no module {error.name!r}: pykafka is not "
        "installed there. Set PYSPARK_PYTHON to the Python that has pykafka before Spark starts "
        "(export PYSPARK_PYTHON=/path/to/.venv/bin/python); `pykafka doctor` shows which one that is"
    )
