# The image that launch's GKE backend starts: this repository as its working directory, with what the trainer needs.
#   docker build --tag=IMAGE .                             for TPUs
#   docker build --tag=IMAGE --build-arg=EXTRA=cuda .      for GPUs
#   python -m launch.sweep --backend=gke --image=IMAGE ...
FROM python:3.11-slim
ARG EXTRA=tpu
WORKDIR /jmoe
COPY . .
RUN python -m pip install --no-cache-dir -c constraints.txt -e ".[${EXTRA}]"
