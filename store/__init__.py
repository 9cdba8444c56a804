"""What is kept: records, the documents and tensors they rest on, sweeps, notes. See README.md."""
