"""What is big and immutable, once per user: the harness tree and geesefs; where programs are."""
