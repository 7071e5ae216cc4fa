"""The engine proxy: what the sidecar may ask of the Docker engine, and nothing else.

A process of its own (`python -m sidecar.engine_proxy`), the only one that has the engine's socket:
whoever has that is root on the host. Every request is parsed and built anew from checked values;
nothing that was sent is passed on (docs/adr/0014-an-engine-proxy-of-our-own.md).
"""
