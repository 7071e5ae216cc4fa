"""The way out of a sandbox to anything but a model: an HTTP proxy on the session's own socket.

It takes CONNECT and requests for `http://` URLs, looks names up itself, and connects to nothing but
public addresses: the very ones that it has checked (docs/egress.md).
"""
