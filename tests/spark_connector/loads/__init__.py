"""Tests of loads: planning, records, the loop; what all destinations, and what all tables, must do."""
