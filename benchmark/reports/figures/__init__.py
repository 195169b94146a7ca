"""Figures of a run: one module per kind of figure, each drawn from findings."""
