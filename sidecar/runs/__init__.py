"""Turns as they run: the journal of each, the sandboxes they use, the steps they go through."""
