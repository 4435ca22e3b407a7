"""Record batches: headers, records, compression, and batches to and from Arrow columns."""
