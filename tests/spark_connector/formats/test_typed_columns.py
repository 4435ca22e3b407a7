"""The table of types and formats: every column that is written comes back as it was."""

from __future__ import annotations

import pytest

from tests.support.typed_columns import FORMATS, VALUES, cell

NOT_WRITTEN = {("protobuf", name) for name in ("DECIMAL(10,2)", "TIMESTAMP_NTZ")}
NOT_READ = {("csv", name) for name in ("BINARY", "ARRAY<INT>", "MAP<STRING,INT>", "STRUCT<a: INT>")}
AS_ANOTHER_TYPE = {("JSON Schema", "TIMESTAMP_NTZ"), ("protobuf", "DATE")}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", VALUES)
def test_what_is_written_comes_back(form: str, name: str) -> None:
    made = cell(name, form)
    assert bool(made.written) == (form != "csv" and (form, name) not in NOT_WRITTEN)
    assert bool(made.read) == ((form, name) not in NOT_WRITTEN | NOT_READ)
    assert made.same == (bool(made.read) and (form, name) not in AS_ANOTHER_TYPE)
