"""What was measured, kept: programs, runs, and which latencies may be compared."""
