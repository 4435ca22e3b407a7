"""What is known of a cluster, now and over the last hour."""
