"""Pods' sessions: sockets, packets, requests; used by the agent's runtime."""
