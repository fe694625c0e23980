"""The agent without Kubernetes: a manifest says what an API server would."""
