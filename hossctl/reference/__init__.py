"""The pages under docs/reference, made from what the code itself goes by: `python -m hossctl.reference`."""
