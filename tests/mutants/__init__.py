"""Faults that the tests must find, each put into a copy of the tree; `make mutants` tries them."""
