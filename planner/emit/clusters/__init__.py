"""Emits plans for clusters: Kubernetes and what stands on it, Ray, Docker Compose."""
