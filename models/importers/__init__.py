"""Readers of the parts of a Hugging Face config.json; `planner.models.config_json` puts them together."""
