"""What many records show together: series, settings of computers, agreement classes, causes."""
