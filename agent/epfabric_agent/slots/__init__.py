"""The program epfabric-slots: tells Kubernetes how many sessions a node's rails serve."""
