"""Keys and certificates of agents: made by hand for a manifest, or signed by the operator."""
