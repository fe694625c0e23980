"""Shared fixtures of all tiers."""

pytest_plugins = ["harness.fixtures"]
