"""The native producer with which a CPU process pushes commands; used by `epfabric`."""
