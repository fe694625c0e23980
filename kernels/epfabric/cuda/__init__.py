"""The GPU side of the library: kernels compiled at run time, a rank's rings on the device.

Nothing here is imported by `import epfabric`; it needs the extra `epfabric[cuda]`.
"""
