"""What continuous integration shows: JUnit XML and the summary of a job."""
