"""Parsers of load generators' reports (vllm bench, genai-perf, guidellm, llm-d ...) into one record type."""
