"""firebird-driver made safe: what it leaves open, binds slowly, or translates wrongly."""
