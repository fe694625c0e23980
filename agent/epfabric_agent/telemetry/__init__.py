"""What the agent tells of itself by OpenTelemetry; `runtime` is the door, the rest is pure."""
