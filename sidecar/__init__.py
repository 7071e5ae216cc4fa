"""Runs turns: gets a sandbox, brings the workspace in, drives the harness, proves durability."""
