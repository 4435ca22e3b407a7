"""That a writing task imports no pandas, and that pyarrow knows pandas as ever once anybody imports it.

Each case is a new process, because pyarrow looks for pandas once.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

_IN_A_WORKER = """
import importlib.util, sys, types
sys.modules["__main__"].__spec__ = types.SimpleNamespace(name="pyspark.daemon")
import pyarrow as pa
from spark_connector.pandas_later import next_array_without_pandas, without_pandas

array = pa.array
with without_pandas():
    assert pa.scalar(1).as_py() == 1 and pa.array([b"x", None]).to_pylist() == [b"x", None]
    assert pa.array(range(3)).to_numpy().tolist() == [0, 1, 2]
    assert importlib.util.find_spec("pandas") is not None
next_array_without_pandas()
message = pa.array([b"message"])
held = "pandas" not in sys.modules
assert message.type == pa.binary() and message.to_pylist() == [b"message"] and pa.array is array
"""

_SERIES = """
import pandas as pd
values = pd.Series([1.5, float("nan")])
assert pa.array(values).null_count == 1, pa.array(values)  # a sequence of floats would have none
assert pa.array(pd.Categorical(["a", "b", "a"])).type == pa.dictionary(pa.int8(), pa.string())
assert pa.table(pd.DataFrame({"a": [1]})).column_names == ["a"]
assert pd.__spec__.loader is pd.__loader__ and type(pd.__loader__).__module__ != "spark_connector.pandas_later"
"""
_TO_PANDAS = """
frame = pa.table({"a": array([1, None])}).to_pandas()
assert frame["a"].isna().tolist() == [False, True]
import pandas as pd
assert pa.array(pd.Series([float("nan")])).null_count == 1
"""


_TYPED_READ = """
import sys, types
sys.modules["__main__"].__spec__ = types.SimpleNamespace(name="pyspark.daemon")
import pyarrow as pa
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.read import fetch
from spark_connector.read.readers import KafkaInputPartition, read_partition

given = {"kafka.bootstrap.servers": "host:1", "subscribe": "t", "valueFormat": "json", "valueSchema": "a INT"}
fetch.read_ranges = lambda *_: (pa.record_batch({"a": [number]}) for number in range(2))
read = read_partition(parse_options(given, Mode.BATCH), KafkaInputPartition((), {}))
assert [batch.column(0).to_pylist() for batch in read] == [[0], [1]]
held = "pandas" not in sys.modules
array = pa.array
assert held
"""


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_task_that_decodes_imports_no_pandas() -> None:
    run(_TYPED_READ + _SERIES)


@pytest.mark.parametrize("later", [_SERIES, _TO_PANDAS], ids=["a series comes", "a table goes"])
def test_a_task_imports_no_pandas_and_pyarrow_knows_it_once_it_is_there(later: str) -> None:
    run(_IN_A_WORKER + "assert held\n" + later)


def test_a_task_that_converted_nothing_leaves_nothing_behind() -> None:
    first, _, _ = _IN_A_WORKER.partition("with without_pandas")
    run(first + "with without_pandas():\n    pass\n" + "assert array([1, 2]).to_pylist() == [1, 2]\n" + _SERIES)


def test_where_pandas_is_there_already_nothing_is_hidden() -> None:
    run("import pandas\n" + _IN_A_WORKER + "import pandas as pd\nassert sys.modules['pandas'] is pd\n" + _SERIES)


def test_in_the_users_own_process_pandas_is_imported_as_ever() -> None:
    own = _IN_A_WORKER.replace('"pyspark.daemon"', '"my_program"')
    run(own + "assert not held\n")
