"""E2B, Daytona and Modal on the wire, for unmodified SDKs. Boxes are real: containers, or
namespaced processes where there is no Docker engine. Nothing leaves this machine.

    python -m emulators e2b --port 0 [--reach PORT[=HOST:PORT] ...] [--backend container] ...

prints one line of JSON when it is ready, {"url": ..., "control": ...} and what else the emulator
tells, and serves until SIGTERM or SIGINT; then every box that it made is removed.

What an emulator is: a package `emulators.<name>` that has

    @contextlib.asynccontextmanager
    async def serve(options: Options, boxes: Boxes, faults: Faults) -> AsyncIterator[Ready]

which listens on entering and yields where, and has stopped listening when it is left. It makes
boxes with `boxes.create` and does not have to destroy them at its end: who opened `boxes` does.

- `emulators.options`: `Options`, `Ready`.
- `emulators.boxes`: `Boxes`, `Box`, `BoxProcess` and their errors; `open_boxes(options)`.
- `emulators.faults`: `Faults`, `Levers` and the ASGI app `Faulty(app, faults, levers, ...)` that
  goes around an emulator's own: it injects faults and serves `/_emulator/...`.
- `emulators.rpc_faults`: the same for a grpclib server; its control is `Faulty` around nothing, on
  a second port.
- `emulators.http_server`: `http_server(app, host, port)`, a context manager that yields the URL.
- `emulators.lending`: an emulator's ports on the loopback of another container.
- `emulators.port_proxy`: `forward(scope, receive, send, connect, ...)`, one HTTP request carried
  into a box.

This package imports nothing of the other ones.
"""
