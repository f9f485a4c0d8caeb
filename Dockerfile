# The image that launch's GKE backend starts: this repository as its working directory, with what the trainer needs.
#   python -m launch.image --image=IMAGE --push                 for TPUs
#   python -m launch.image --image=IMAGE --push --extra=cuda    for GPUs
#   python -m launch.sweep --backend=gke --image=IMAGE ...
# Its processes are not root's; a node whose TPU devices only root may open wants --pod_patch (docs/guides/sweep-on-gke.md).
# It builds nothing but the code and the version of jax that it was told, or whatever is here where it was told none.
FROM python:3.13-slim@sha256:9662417aace5ae7b8e2609cce472b72a8958e134ba372808abe9cc1a0c0125e6
ARG EXTRA=tpu
ARG JAX=
ARG CODE=
WORKDIR /jmoe
COPY . .
RUN if [ -n "$JAX" ]; then sed -i -E "s/^jax==.*/jax==$JAX/; /^(jaxlib|libtpu)==/d" constraints.txt; fi
RUN python -m pip install --no-cache-dir -c constraints.txt -e ".[${EXTRA}]"
RUN useradd --create-home --uid 1000 jmoe
RUN if [ -n "$CODE" ]; then python -m launch.image --expect="$CODE"; fi
USER jmoe
