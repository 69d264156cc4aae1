"""The JSON schema of a comparison, from its model: `python -m hossctl.compare.schema > docs/benchmarks/compare.schema.json`."""

import json
import sys

from hossctl.compare.document import SCHEMA, Comparison


def json_schema() -> str:
    """JSON Schema 2020-12, as text that ends in a newline."""
    schema = Comparison.model_json_schema(by_alias=True, mode="serialization")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA}
    return json.dumps({**head, **schema}, indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(json_schema())
