"""The program that runs one container: `python -m harness.kubelet.launch`; standard library only.

The kubelet starts one for each run of a container. It builds the container's mounts, starts the
command, reports its end, and ends everything below it when the kubelet asks or is gone.
"""
