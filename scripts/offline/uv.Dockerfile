# Looks like ghcr.io/astral-sh/uv: nothing but the program, from its wheel.
FROM debian:trixie-slim AS wheel
RUN apt-get update && apt-get install -y --no-install-recommends python3-pip
ARG VERSION
RUN --mount=type=cache,target=/root/.cache/pip pip install --target /wheel uv==${VERSION}

FROM scratch
COPY --from=wheel /wheel/bin/uv /wheel/bin/uvx /
ENTRYPOINT ["/uv"]
