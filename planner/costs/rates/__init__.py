"""From kernels to seconds: roofline, measured tables, collectives, calibration, and what each rests on."""
