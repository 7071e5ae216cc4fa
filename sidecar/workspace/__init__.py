"""The durable directory: engines that bring `bucket:<session>` into a sandbox, and the proof that
what is in it is in the store. An engine says only how to mount; the rest is shared."""
