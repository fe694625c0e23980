"""Groups of ranks: membership and epochs at the coordinator, and each node's part."""
