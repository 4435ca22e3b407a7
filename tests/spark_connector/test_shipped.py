"""What executors open, and the one sentence where they cannot. With a real Spark: test_shipped_environment.py."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark import cloudpickle

from spark_connector import shipped
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.read.readers import KafkaBatchReader, KafkaStreamReader, make_reader
from spark_connector.write.writers import KafkaBatchWriter
from tests.support.source_tree import ROOT

OPTIONS = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "flights"}
WHO = f"Spark's executor on host {socket.gethostname()} runs its Python code with "


class Sent:
    def __reduce__(self) -> tuple[object, ...]:
        return shipped.shipped(list, "ab")


@pytest.mark.parametrize("mode", [Mode.BATCH, Mode.STREAM])
def test_a_reader_arrives_as_what_it_is(mode: Mode) -> None:
    options = parse_options(OPTIONS, mode)
    reader = KafkaBatchReader(options) if mode is Mode.BATCH else make_reader(options)
    for pickles in (cloudpickle, pickle):
        arrived = pickles.loads(pickles.dumps(reader))
        assert isinstance(arrived, KafkaBatchReader | KafkaStreamReader)
        assert arrived._options == options


def test_a_writer_arrives_as_a_class_of_the_main_program() -> None:
    """Which no executor finds by name. So Spark pickles it by its code."""
    late: Any = type("LateWriter", (KafkaBatchWriter,), {"__module__": "__main__"})
    plan: Any = "a plan"
    arrived = cloudpickle.loads(cloudpickle.dumps(late(plan)))
    assert type(arrived).__name__ == "LateWriter"
    assert isinstance(arrived, KafkaBatchWriter)
    assert arrived._plan == plan


def test_a_python_without_pykafka_says_so_in_a_sentence(tmp_path: Path) -> None:
    """The very bytes that go to an executor, in a Python that has PySpark and nothing else."""
    sent = tmp_path / "sent"
    sent.write_bytes(cloudpickle.dumps(Sent()))
    zips = [str(one) for one in (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")]
    code = f"import sys, pickle; sys.path += {zips}; pickle.load(open({str(sent)!r}, 'rb'))"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60)
    said = done.stderr.splitlines()[-1]
    assert said.startswith(f"ImportError: {WHO}{sys.executable} (Python 3.")
    assert "has no module 'spark_connector', which pykafka needs: give executors what the driver has" in said
    assert "pykafka pack" in said


def test_another_release_is_refused_before_it_reads_the_plan() -> None:
    with pytest.raises(ImportError, match=f"{WHO}.* has another release of pykafka than the driver, in {ROOT}"):
        shipped.opened(b"not even a pickle", shipped.code_digest() + 1, "")


def test_a_release_that_compares_nothing_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spark_connector.shipped", None)
    with pytest.raises(ImportError, match="has another release of pykafka than the driver"):
        shipped.opened(b"", shipped.code_digest(), "")


def test_what_another_pyarrow_cannot_read_names_both() -> None:
    with pytest.raises(ImportError, match=f"has pyarrow {pa.__version__}, which cannot .* with pyarrow 1.2.3"):
        shipped.opened(b"no pickle", shipped.code_digest(), "1.2.3")
    with pytest.raises(pickle.UnpicklingError):  # of the same one that is a fault of ours
        shipped.opened(b"no pickle", shipped.code_digest(), pa.__version__)


def test_a_module_that_is_missing_behind_the_package_is_named() -> None:
    class Needs:
        def __reduce__(self) -> tuple[object, ...]:
            return __import__, ("no_such_module",)

    with pytest.raises(ImportError, match="has no module 'no_such_module', which pykafka needs"):
        shipped.opened(pickle.dumps((Needs(), ())), shipped.code_digest(), "")


def test_the_same_code_in_a_zip_is_the_same_release(tmp_path: Path) -> None:
    for package in ("broker", "spark_connector"):
        (tmp_path / "tree" / package / "inner").mkdir(parents=True)
        (tmp_path / "tree" / package / "inner" / "one.py").write_text("x = 1\n")
        (tmp_path / "tree" / package / "kernel.so").write_bytes(b"other machine")
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
        for file in (tmp_path / "tree").rglob("*.*"):
            archive.write(file, file.relative_to(tmp_path / "tree"))
        archive.writestr("else/two.py", "y = 2")
    expected = [("broker/inner/one.py", 6), ("spark_connector/inner/one.py", 6)]
    assert sorted(shipped._modules(tmp_path / "tree")) == expected
    assert sorted(shipped._modules(tmp_path / "code.zip")) == expected
