"""`python -m broker start …` is `pykafka broker start …`."""

from __future__ import annotations

import sys

from broker.tools.main import main

if __name__ == "__main__":
    main(["broker", *sys.argv[1:]])
