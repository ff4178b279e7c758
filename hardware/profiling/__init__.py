"""Benchmarks kernels (GEMM, attention, MoE, collectives) on this machine and writes them as kernel tables."""
