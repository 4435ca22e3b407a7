"""Reading: offsets and ranges on the driver, fetch and decode on executors, the two readers that Spark calls."""
