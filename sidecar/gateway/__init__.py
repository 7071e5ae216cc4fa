"""The model gateway: the only way out of a sandbox, one unix socket per session.

A process of its own (`python -m sidecar.gateway`), so that model requests outlive the sidecar.
It adds the real key to a request and passes it on, or answers with the scripted model.
"""
