"""`pykafka ui`: a console in the browser for any Kafka. It talks the protocol as a client (docs/how-to/console.md)."""
