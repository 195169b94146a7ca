"""Attacks that no library has, or that no library can restrict to the survivors of a batch."""
