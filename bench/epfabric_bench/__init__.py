"""The benches of `make bench`: builds and runs them, compares with peers, writes table and JSON."""
