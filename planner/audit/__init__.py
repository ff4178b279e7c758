"""What people run, judged and answered: what it does, which few settings to change, what the hardware could do."""
