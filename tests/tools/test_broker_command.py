"""What the broker's process asks of its operating system."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest


def _page_faults(prepare: str) -> int:
    """Minor page faults of a child that takes and frees 200 buffers of a megabyte, after `prepare`."""
    script = f"""
        import resource
        from broker.tools.broker import keep_freed_memory
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
def test_buffers_of_a_megabyte_are_not_given_back_to_the_kernel_each_time() -> None:
    without, kept = _page_faults("pass"), _page_faults("assert keep_freed_memory()")
    assert kept < 2000
    assert kept < without / 5


def test_as_many_files_may_be_open_as_the_system_allows() -> None:
    script = (
        "import resource; from broker.tools.broker import allow_many_files; allow_many_files(); "
        "soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE); print(soft == hard)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
