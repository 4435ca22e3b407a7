"""One file per Kafka API; table.py is the whole of it on one page."""
