# The services: api, and sidecar, which is the gateway and the engine proxy too; and the emulated
# clouds, which only the profile `emulated` of compose builds.
# (The box-host is in sandbox-image/Dockerfile.)   docker build --target api -t holdfast-api .
ARG BASE=debian:trixie-slim

FROM ${BASE} AS python
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 1000 holdfast \
    && useradd --uid 1000 --gid 1000 --home-dir /nonexistent --no-create-home --shell /usr/sbin/nologin holdfast \
    && install -d -o holdfast -g holdfast /data
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin PYTHONPATH=/app PYTHONUNBUFFERED=1 MALLOC_ARENA_MAX=1 LANG=C.UTF-8
WORKDIR /data

FROM python AS packages
COPY --from=ghcr.io/astral-sh/uv:0.13.7 /uv /usr/local/bin/uv
ENV UV_PYTHON=/usr/bin/python3 UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy \
    UV_COMPILE_BYTECODE=1 UV_PROJECT_ENVIRONMENT=/opt/venv
WORKDIR /src
COPY pyproject.toml uv.lock ./
COPY api/pyproject.toml api/
COPY client/pyproject.toml client/
COPY contracts/pyproject.toml contracts/
COPY emulators/pyproject.toml emulators/
COPY sidecar/pyproject.toml sidecar/
COPY stack/pyproject.toml stack/

FROM packages AS api-packages
RUN --mount=type=cache,target=/root/.cache/uv \
    uv sync --locked --quiet --package holdfast-api --no-default-groups --no-install-workspace

FROM packages AS sidecar-packages
# with the clouds' SDKs, which are extras of the sidecar and in no other image
RUN --mount=type=cache,target=/root/.cache/uv \
    uv sync --locked --quiet --package holdfast-sidecar --all-extras --no-default-groups \
        --no-install-workspace

FROM packages AS emulators-packages
RUN --mount=type=cache,target=/root/.cache/uv \
    uv sync --locked --quiet --package holdfast-emulators --no-default-groups --no-install-workspace

FROM python AS emulators
COPY --from=emulators-packages /opt/venv /opt/venv
COPY docker/healthy.py /opt/holdfast/
COPY emulators /app/emulators
RUN /opt/venv/bin/python -m compileall -q /app
ENTRYPOINT ["/opt/venv/bin/python", "-P", "-m", "emulators"]

FROM python AS api
COPY --from=api-packages /opt/venv /opt/venv
COPY docker/first_start.py docker/healthy.py /opt/holdfast/
COPY seaweedfs/buckets.py /opt/holdfast/
COPY contracts /app/contracts
COPY client /app/client
COPY api /app/api
# it runs as a user who cannot write there: without bytecode every start would compile all of it
RUN /opt/venv/bin/python -m compileall -q /app
USER 1000:1000
ENTRYPOINT ["/opt/venv/bin/python", "-P"]
CMD ["-m", "api"]

FROM python AS sidecar
COPY --from=sidecar-packages /opt/venv /opt/venv
COPY docker/healthy.py /opt/holdfast/
COPY contracts /app/contracts
COPY sidecar /app/sidecar
RUN /opt/venv/bin/python -m compileall -q /app
USER 1000:1000
ENTRYPOINT ["/opt/venv/bin/python", "-P"]
CMD ["-m", "sidecar"]
