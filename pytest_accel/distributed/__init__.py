"""Processes that measure: one fresh process now, gangs of ranks later."""
