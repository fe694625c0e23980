"""`kubectl epfabric`: what people ask of a fabric from their terminal.

One file a command; what decides is pure and gets what cluster.py has read.
"""
