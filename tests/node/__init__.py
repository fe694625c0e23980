"""Tests on real nodes: kubelet, containerd, runc, and the built images."""
