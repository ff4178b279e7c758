"""Verifies the proof of a training plan: space derived again, decision priced again."""
