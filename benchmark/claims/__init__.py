"""What a paper claims of a model: read, put to the test, and answered with a certificate that anybody can check."""
