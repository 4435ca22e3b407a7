"""The integration tests that public clients have for themselves: those that are documented fail, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.public_suites import documented, run, unpacked
from tests.support.requirements import Unavailable, give_up

pytestmark = pytest.mark.slow


@pytest.mark.timeout(900)
def test_kafka_pythons_own_tests(tmp_path: Path) -> None:
    try:
        source = unpacked("kafka-python", "3.0.12")
    except Unavailable as error:
        give_up(f"kafka-python's tests: {error}")
    # The version says which of their tests apply; their clients infer it from the APIs we serve.
    outcome = run(
        source, "test/integration", "tests.compat.public.kafka_python_adapter", tmp_path, {"KAFKA_VERSION": "4.3"}
    )
    raced = documented("kafka-python, a race of its own")
    assert outcome.failed - raced == documented("kafka-python, not applicable"), outcome.output[-8000:]
    assert raced <= outcome.passed | outcome.failed, "the document names a test that there is none of"
    assert len(outcome.passed | raced) == 65
    assert len(outcome.skipped) == 1
