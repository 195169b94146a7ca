"""Attacks that no library has, or that none runs on the survivors of a batch alone."""
