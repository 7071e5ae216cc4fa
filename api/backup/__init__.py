"""A whole stack in one file: `python -m api.backup` makes it, checks it, and brings it back."""
