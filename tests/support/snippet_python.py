"""A Python that runs what tests/support/snippets.py sends it, as lines of JSON; each page has its own names."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import traceback
from typing import Any


def main() -> None:
    names: dict[str, dict[str, Any]] = {}
    answers = sys.stdout
    for line in sys.stdin:
        task = json.loads(line)
        printed, error = io.StringIO(), ""
        with contextlib.redirect_stdout(printed):
            try:
                exec(compile(task["code"], task["page"], "exec"), names.setdefault(task["page"], {}))
            except Exception:
                error = traceback.format_exc()
        answers.write(json.dumps({"printed": printed.getvalue(), "error": error}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
