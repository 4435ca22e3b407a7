"""What Apache Kafka 3.8.1 answered to scripted requests, the code that asks them, and what is wanted otherwise."""
