"""A small blocking Kafka client; leans on nothing but the protocol, so it works against Apache Kafka too."""
