"""For plugin authors: contract suites, one module per kind, and a scheduler over a scripted model."""
