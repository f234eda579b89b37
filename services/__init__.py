"""Real servers for tests, benchmarks and trying things out, without containers."""
