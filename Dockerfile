# Renders the report into this clone and runs the tests:
#   docker build -t aero . && docker run --rm -v "$PWD/reports:/aero/reports" aero
FROM python:3.11-slim-bookworm
RUN apt-get update && apt-get install -y --no-install-recommends make git && rm -rf /var/lib/apt/lists/*
WORKDIR /aero
COPY . .
RUN make install PYTHON=python3.11
CMD ["make", "report", "test"]
