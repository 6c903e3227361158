# Two images from one file, with the wheels that `make wheels` writes to dist/:
#   docker build --target serve  -t rowcast-serve .     the service, without TensorFlow
#   docker build --target export -t rowcast-export .    the exporter, with TensorFlow and TensorFlow Recommenders
# Without Docker: scripts/build_image.
# Base images are tags; to pin them by digest:
#   docker build --build-arg RUN_IMAGE=python:3.11-slim-bookworm@sha256:... --build-arg BUILD_IMAGE=... ...
ARG BUILD_IMAGE=python:3.11-bookworm
ARG RUN_IMAGE=python:3.11-slim-bookworm

# What both images are built with. The build image has a compiler, for packages without a wheel for this platform.
FROM ${BUILD_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
COPY deploy/constraints.txt /constraints.txt
RUN python -m venv --without-pip /tools \
 && pip --python /tools/bin/python install --constraint /constraints.txt cyclonedx-bom
COPY dist/rowcast-*.whl /wheels/
# The wheel for this Python. Rows are to be read by compiled code in the images: a wheel for any platform has none.
RUN pip download --no-index --find-links /wheels --no-deps --pre --dest /wheel rowcast \
 && ! ls /wheel/rowcast-*-none-any.whl 2>/dev/null

# What each image installs, in a virtual environment without pip, and the list of it.
FROM build AS serve-packages
ARG SERVE_EXTRAS=serve
RUN python -m venv --without-pip /opt/rowcast \
 && pip --python /opt/rowcast/bin/python install --constraint /constraints.txt "$(echo /wheel/*.whl)[${SERVE_EXTRAS}]" \
 && /tools/bin/cyclonedx-py environment --spec-version 1.6 --output-reproducible --gather-license-texts \
    --output-file /opt/rowcast/sbom.cdx.json /opt/rowcast
# The service is to run without TensorFlow, unless it was asked for: SERVE_EXTRAS=serve,savedmodel (or serve,gpu).
RUN case ",${SERVE_EXTRAS}," in *,savedmodel,* | *,gpu,*) ;; *) ! /opt/rowcast/bin/python -c 'import tensorflow' 2>/dev/null ;; esac

FROM build AS export-packages
RUN python -m venv --without-pip /opt/rowcast \
 && pip --python /opt/rowcast/bin/python install --constraint /constraints.txt "$(echo /wheel/*.whl)[export,examples]" \
 && /tools/bin/cyclonedx-py environment --spec-version 1.6 --output-reproducible --gather-license-texts \
    --output-file /opt/rowcast/sbom.cdx.json /opt/rowcast

# What both images are: one user, one directory of bundles that belongs to it. A new volume mounted there takes over that
# owner from whichever image comes first.
FROM ${RUN_IMAGE} AS base
RUN groupadd --system --gid 10001 rowcast \
 && useradd --system --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin rowcast \
 && install --directory --owner 10001 --group 10001 /bundles
ENV PATH=/opt/rowcast/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001

FROM base AS export
COPY --from=export-packages /opt/rowcast /opt/rowcast
ENV HOME=/tmp
WORKDIR /work
ENTRYPOINT ["rowcast-export"]
CMD ["--help"]

FROM base AS serve
COPY --from=serve-packages /opt/rowcast /opt/rowcast
ENV ROWCAST_ROOT=/bundles ROWCAST_HOST=0.0.0.0
EXPOSE 8080 8081 9090
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ.get('ROWCAST_HEALTH_PORT', '8081') + '/livez', timeout=2)"]
ENTRYPOINT ["rowcast-serve"]
