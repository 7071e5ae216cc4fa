# Looks like postgres where compose uses it: Debian's package of the same major version.
FROM debian:trixie-slim
ARG VERSION
# the official image's ids, so that a data volume can move between the two
RUN groupadd -r -g 999 postgres && useradd -r -u 999 -g 999 -d /var/lib/postgresql -s /bin/bash postgres
RUN mkdir -p /etc/postgresql-common && echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf \
    && apt-get update \
    && apt-get install -y --no-install-recommends postgresql-${VERSION%%[.-]*} \
    && rm -rf /var/lib/apt/lists/* \
    && ln -s /usr/lib/postgresql/${VERSION%%[.-]*}/bin/* /usr/local/bin/ \
    && install -d -o postgres -g postgres -m 0700 /var/lib/postgresql/data \
    && install -d -o postgres -g postgres -m 2777 /var/run/postgresql
COPY postgres-entrypoint /usr/local/bin/docker-entrypoint.sh
ENV PGDATA=/var/lib/postgresql/data LANG=C.UTF-8
VOLUME /var/lib/postgresql/data
STOPSIGNAL SIGINT
EXPOSE 5432
ENTRYPOINT ["/usr/local/bin/docker-entrypoint.sh"]
CMD ["postgres"]
