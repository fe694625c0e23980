"""A client that breaks every rule, beside others that must not notice; a package for its fixtures."""
