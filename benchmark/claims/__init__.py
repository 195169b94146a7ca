"""Claims about a model: read them, test them, and write a certificate that anybody can check."""
