"""Where sandboxes come from: one file per provider behind one contract (base.py)."""
