"""Observers: the engine's end of them (`feed`), and the process that each runs in (`process`)."""
