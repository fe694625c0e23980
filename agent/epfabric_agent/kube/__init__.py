"""The agent's edges to the API server: settings, status, Lease, certificate, groups."""
