"""The numpy reference: the definition of every mode of sampling."""
