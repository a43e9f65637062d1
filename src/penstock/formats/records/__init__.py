"""Files of records: one description of a format gives the stream of its records and finds any by its number."""
