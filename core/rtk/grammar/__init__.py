"""Structured output: what clients ask for, in normal form; who compiles it, where; and which tokens may come next."""
