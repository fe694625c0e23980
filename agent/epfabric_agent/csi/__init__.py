"""The CSI driver `csi.epfabric.io`: gives a pod the directory in which its node's agent listens.

A program of its own (`epfabric-csi`). It imports neither the agent's native core nor Kubernetes
client libraries: it starts on every node before anything else of the fabric does.
"""
