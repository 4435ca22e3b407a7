"""The ZooKeeper client and server, and what brokers keep in ZooKeeper in Kafka's paths and JSON."""
