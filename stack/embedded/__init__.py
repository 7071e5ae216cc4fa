"""The whole stack as processes of one machine, supervised, without Docker."""
