"""One invocation of pytest: which items are benchmarks, where they run, what their verdicts do."""
