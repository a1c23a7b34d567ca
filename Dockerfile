# The package with the versions of requirements.lock, on processors or, with DEVICE=cuda, on NVIDIA GPUs:
#   docker build --tag showattendtell .
#   docker build --tag showattendtell --build-arg DEVICE=cuda .
#   docker run --rm --user "$(id -u)" --volume "$PWD:/data" showattendtell caption photo.jpg
ARG PYTHON=3.13
FROM python:${PYTHON}-slim
ARG DEVICE=cpu
ARG EXTRAS=onnx,serve
WORKDIR /build
COPY . .
# The CPU's wheels of torch and torchvision are on PyTorch's own index, and the lock has the hashes of PyPI's.
# Triton compiles the start of its kernels with gcc.
# hadolint ignore=DL3008
RUN pip install --no-cache-dir uv==0.13.9 \
    && case "$DEVICE" in \
        cpu) export UV_TORCH_BACKEND=cpu \
            && awk '/^[^ ]/ {torch = /^torch(vision)?==/} torch {if (/--hash/) next; sub(/ \\$/, "")} 1' \
                requirements.lock > versions.txt ;; \
        cuda) cp requirements.lock versions.txt \
            && apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev \
            && rm -rf /var/lib/apt/lists/* ;; \
        *) echo "DEVICE=$DEVICE: choose cpu or cuda" && exit 1 ;; \
    esac \
    && uv pip install --system --no-cache --compile-bytecode --constraints versions.txt ".[$EXTRAS]" \
    && showattendtell caption src/showattendtell/visualization/examples/dog.jpg output=/root/check \
    && rm -rf /root/check /root/.cache
ENV HOME=/tmp
WORKDIR /data
USER 1000
ENTRYPOINT ["showattendtell"]
