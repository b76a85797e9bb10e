"""One round of federated training, timed for Coterie and for other libraries in turns."""
