"""Everything that needs privilege on a host of ours: boxes and mounts.

A box is a bubblewrap sandbox; a mount is a FUSE daemon that serves one session's workspace.
Both are processes of their own that outlive whoever started them; what is known of them is on
disk, keyed by pid and start time, so that a restarted service finds them again.
"""
