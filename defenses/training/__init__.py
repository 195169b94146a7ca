"""Training an ensemble with any defense: recipes, the loop, resuming, several processes."""
