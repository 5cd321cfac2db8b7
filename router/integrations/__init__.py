"""Shoal inside other people's frameworks. Thin shells over the router: no decision is made here."""
