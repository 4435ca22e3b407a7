"""The broker's settings, in Kafka's key names, each declared once, a file per part."""
