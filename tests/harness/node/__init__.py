"""Real nodes on one machine: kubelet, containerd and runc, each node in namespaces of its own."""
