"""Everything that reproduces papers: their runs, records, tables and the ledger."""
