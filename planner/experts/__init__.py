"""Expert placement and replication for mixture-of-experts models (what EPLB does), for engines and training loops."""
