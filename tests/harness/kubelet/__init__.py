"""A stand-in kubelet: runs the pods of the test cluster's nodes as processes."""
