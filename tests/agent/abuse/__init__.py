"""A client that breaks every rule, beside others that must not notice."""
