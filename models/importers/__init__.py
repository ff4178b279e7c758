"""Readers of Hugging Face config.json by model family; `planner.models.config_json` puts them together."""
