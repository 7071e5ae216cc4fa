"""A sidecar that may die at any await and at any write, in one process and without waiting."""
