# docker build -f deploy/reindex.Dockerfile --build-arg SPARK=4.1.0 -t registry.example/cablestore-reindex .
# Driver and executors of deploy/reindex.yaml. SPARK is the version of PySpark; Spark's image contains the start script.
ARG SPARK
FROM apache/spark:${SPARK} AS spark

FROM python:3.12-slim
ARG SPARK
# Debian removes old versions, so a pinned version stops working.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends default-jre-headless procps tini \
    && rm -rf /var/lib/apt/lists/*
COPY --from=spark /opt/spark /opt/spark
COPY --from=spark /opt/entrypoint.sh /opt/decom.sh /opt/
COPY . /src
RUN pip install --no-cache-dir '/src[cli,reindex]' "pyspark==${SPARK}" && useradd --uid 10001 --home-dir /data cablestore
USER 10001
VOLUME /data
ENV SPARK_HOME=/opt/spark \
    JAVA_HOME=/usr/lib/jvm/default-java
ENTRYPOINT ["/opt/entrypoint.sh"]
