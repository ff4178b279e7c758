"""Checks a plan on a running engine: starts vLLM or SGLang or connects to it, sends load, compares with predictions."""
