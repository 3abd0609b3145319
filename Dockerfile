# The server of a state: docker build -t purereplay . && docker run -p 127.0.0.1:8491:8491 -v "$PWD/state:/state" purereplay
FROM python:3.11-slim

# PyTorch's wheels without CUDA are much smaller: pass --build-arg PIP_EXTRA_INDEX_URL=… of an index that has them
ARG PIP_EXTRA_INDEX_URL
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --disable-pip-version-check -c constraints.txt '.[web,onnx]' \
    && useradd --uid 1000 --create-home purereplay

USER purereplay
VOLUME /state
EXPOSE 8491
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8491/health', timeout=4)"]
ENTRYPOINT ["purereplay", "serve", "--state", "/state", "--host", "0.0.0.0"]
