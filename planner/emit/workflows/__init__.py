"""Workflows as graphs of services: KServe, Argo Workflows and Ray Serve."""
