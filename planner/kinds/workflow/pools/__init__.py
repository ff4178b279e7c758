"""Pools of stages with times as measured: of speech, and of images."""
