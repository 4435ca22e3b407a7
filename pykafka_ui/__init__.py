"""`pykafka ui`: a console in the browser for any Kafka, as a client of it (docs/how-to/browser-console.md)."""
