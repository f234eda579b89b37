"""The hot tier as the write side sees it: what its ledgers hold, what is missing, what may be deleted there."""
