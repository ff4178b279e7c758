"""Emits serving plans as launch scripts of vLLM and SGLang."""
