"""Strategies on posterior draws: BALD, BatchBALD, ACS-FW."""
