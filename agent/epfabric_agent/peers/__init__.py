"""The agents among themselves: gRPC under mutual TLS."""
