"""A log broker that speaks the Apache Kafka wire protocol; see docs/architecture.md for the layers."""
