# Profiles the GPU that it is given for 20 minutes and leaves in /out what can be contributed (docs/profiling.md):
# podman build -f Containerfile.profile -t planner-profile . && podman run --rm --device nvidia.com/gpu=all -v "$PWD/out":/out planner-profile
FROM pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime
COPY . /src
WORKDIR /src
RUN pip install --no-cache-dir scipy pyarrow pydantic PyYAML
ENTRYPOINT ["python", "benchmarks/gpu/run.py", "--out", "/out"]
CMD ["--budget", "720", "--execute", "360"]
