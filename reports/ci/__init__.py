"""Output for continuous integration: JUnit XML and the summary of a job."""
