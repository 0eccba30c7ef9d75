"""Policies and predictors on recorded routing, beside Belady's optimum."""
