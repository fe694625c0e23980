"""What a node has and which CPUs its proxies get; used by the agent's runtime."""
