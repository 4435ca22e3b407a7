"""What the exactly-once load is made of; `spark_connector.load` puts it together."""
