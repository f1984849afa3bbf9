"""Old records as schedules of today's TVM, checked against the record, and their statement features."""
