"""The command line of `pykafka broker start`, and what the broker's process asks of its operating system."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from typer.testing import CliRunner

from broker.tools import broker as console_command
from broker.tools.run_broker import KEPT_BYTES, BrokerOptions
from spark_connector.write.attempt import _KEPT_BYTES


def _page_faults(prepare: str) -> int:
    """Minor page faults of a child that takes and frees 200 buffers of a megabyte, after `prepare`."""
    script = f"""
        import resource
        from broker.freed_memory import keep_freed_memory
        {prepare}
        def take():
            kept = [bytearray(1 << 20) for _ in range(3)]
        take()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(200):
            take()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
@pytest.mark.parametrize("kept_bytes", [KEPT_BYTES, _KEPT_BYTES], ids=["broker", "task that writes"])
def test_buffers_of_a_megabyte_are_not_given_back_to_the_kernel_each_time(kept_bytes: int) -> None:
    without, kept = _page_faults("pass"), _page_faults(f"assert keep_freed_memory({kept_bytes})")
    assert kept < 2000
    assert kept < without / 5


def test_as_many_files_may_be_open_as_the_system_allows() -> None:
    script = (
        "import resource; from broker.tools.run_broker import allow_many_files; allow_many_files(); "
        "soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE); print(soft == hard)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "server.properties",
        "--standalone",
        "--stop-on-eof --override a=b --override=c=d=e server.properties",
        "--logging=first.ini --standalone --standalone",
        "--override a=",
    ],
)
def test_a_plain_command_line_is_read_as_typer_reads_it(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[BrokerOptions] = []
    monkeypatch.setattr(console_command, "run_broker", read.append)
    assert CliRunner().invoke(console_command.app, ["start", *line.split()]).exit_code == 0
    assert read == [BrokerOptions.parse(line.split())]


@pytest.mark.parametrize(
    "line",
    ["--help", "-h", "a b", "--override", "--override=", "--overrid a=b", "--logging -x", "--logging a --logging b"],
)
def test_other_command_lines_are_left_to_typer(line: str) -> None:
    assert BrokerOptions.parse(line.split()) is None


def test_a_broker_is_started_without_typer() -> None:
    """typer, and pydantic behind it, are 9 MB. hypothesis, which kio would import, is 9 MB."""
    program = (
        "import sys\n"
        "from broker.tools import run_broker\n"
        "from broker.tools.main import main\n"
        "run_broker.run_broker = print\n"
        "main(['broker', 'start', '--standalone'])\n"
        "print(*{'typer', 'pydantic', 'kazoo'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "standalone=True" in done.stdout.splitlines()[0]
    assert done.stdout.splitlines()[1] == ""
