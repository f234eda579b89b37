"""What was there before: ranges of older ledgers as segments or as objects of one ledger, in any order."""
