"""NIC configuration: what the manifest wants, what may be changed, the change and its way back."""
