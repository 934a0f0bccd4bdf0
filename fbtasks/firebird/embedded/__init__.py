"""What several processes that have one embedded file open must agree on."""
