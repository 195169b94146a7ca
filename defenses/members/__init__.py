"""The members of an ensemble: their networks, how they predict together, and how much they differ."""
