"""From YAML and JSON manifests to the model, checked as the API server checks them."""
