# One image for every role; docs/how-to/compose.md says how to use it. For BuildKit and for the classic builder.
ARG BASE_IMAGE=python:3.12-slim-bookworm

# The list of what Muster needs, so that no other change in pyproject.toml has all of that installed again.
FROM ${BASE_IMAGE} AS list
COPY pyproject.toml .
RUN python3 -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
        > /needed.txt

FROM ${BASE_IMAGE} AS dependencies
# The CPU build of torch; empty for the build on PyPI, which brings CUDA.
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
WORKDIR /build
RUN python3 -m venv --without-pip /opt/muster && python3 -m venv --without-pip /opt/hatchling
# Wheels in build/wheels, if there are any, are taken instead of an index, as they are. Else the lock has the digest of every
# file, and it is checked. Where TORCH_INDEX_URL names another index, that one is trusted with torch, and with nothing else.
COPY --from=list /needed.txt .
COPY constraints.txt requirements.lock build/wheel[s] ./
RUN awk '/^[a-z]/ { of_torch = /^(torch|triton|cuda-|nvidia-)/ } !of_torch' requirements.lock > others.lock \
 && install() { into=$1; shift; python3 -m pip --python /opt/$into/bin/python install --quiet --no-cache-dir \
        --disable-pip-version-check "$@"; } \
 && if ls ./*.whl >/dev/null 2>&1; then \
        install hatchling --no-index --find-links . -c constraints.txt hatchling \
     && install muster --no-index --find-links . -c constraints.txt -r needed.txt; \
    else \
        install hatchling -c constraints.txt hatchling \
     && if [ -z "$TORCH_INDEX_URL" ]; then install muster --require-hashes -r requirements.lock; \
        else install muster --no-deps --require-hashes -r others.lock \
          && install muster --no-deps --index-url "$TORCH_INDEX_URL" -c constraints.txt torch; fi; fi \
 && cd /opt/muster/lib/python3*/site-packages && rm -rf torch/include torch/test \
 && if [ "$(../../../bin/python -c 'import torch; print(torch.version.cuda)')" = None ]; then \
        find bitsandbytes -name 'libbitsandbytes_*.so' ! -name '*_cpu.so' -delete; fi

FROM dependencies AS muster
COPY pyproject.toml LICENSE README.md ./
COPY examples/*.toml examples/
COPY dht dht
COPY coordinator coordinator
COPY dashboard dashboard
COPY peer peer
RUN /opt/hatchling/bin/python -m hatchling build --target wheel --directory dist \
 && python3 -m pip --python /opt/muster/bin/python install --quiet --no-cache-dir --disable-pip-version-check \
        --no-index --no-deps --root /installed dist/*.whl

FROM ${BASE_IMAGE}
RUN useradd --uid 1000 --create-home muster && install --directory --owner=muster --group=muster /data /peers /invite
COPY --from=dependencies /opt/muster /opt/muster
COPY --from=muster /installed /
COPY docker/role /usr/local/bin/role
ENV PATH=/opt/muster/bin:$PATH XDG_DATA_HOME=/data PYTHONUNBUFFERED=1
USER muster
WORKDIR /home/muster
ENTRYPOINT ["muster"]
HEALTHCHECK --interval=30s --timeout=15s --start-period=120s --retries=4 CMD ["muster", "status"]
