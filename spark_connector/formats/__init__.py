"""Value formats: the bytes of keys and values to typed Arrow columns, without Spark."""
