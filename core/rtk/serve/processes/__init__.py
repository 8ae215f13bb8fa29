"""A server as three processes: this package is what stands between them. See docs/decisions/0011."""
