"""Where the copies of the experts of a mixture-of-experts model live: for files, launchers and training loops."""
