"""The table of docs/metrics.md, made from the declared metrics.

`python -m tests.support.metrics_table` writes it anew; tests/web/test_metrics.py fails while it differs.
"""

from __future__ import annotations

from broker.web.families import FAMILIES
from tests.support.source_tree import ROOT

FILE = ROOT / "docs" / "metrics.md"
BEGIN, END = "<!-- table: metrics -->\n", "<!-- end of table -->"


def table() -> str:
    lines = ["| metric | kind | labels | meaning |", "| --- | --- | --- | --- |"]
    for name, kind, labels, doc in FAMILIES.values():
        lines.append(f"| `{name}` | {kind} | {', '.join(labels)} | {doc} |")
    return "\n".join(lines) + "\n"


def regenerate(text: str) -> str:
    """`text` with the table as the code has it."""
    before, after = text.index(BEGIN) + len(BEGIN), text.index(END)
    return text[:before] + table() + text[after:]


if __name__ == "__main__":
    FILE.write_text(regenerate(FILE.read_text(encoding="utf-8")), encoding="utf-8")
