"""What a record is and how records are compared. Portable: the standard library and Python 3.9, no input or output."""
