"""The stand-in kubelet on its own; a package, so that its fixtures end with it."""
