"""A comparison as a Parquet file for notebooks: a row for each run, the columns of the CSV with their
types."""

import io

from hoss.imports import extra
from hossctl.compare.document import Comparison
from hossctl.compare.report.tables import KEYS, columns_of

with extra("parquet"):
    import pyarrow as pa
    from pyarrow import parquet


def as_parquet(comparison: Comparison) -> bytes:
    """The file. Text, whole numbers and truth values keep their type, figures are doubles, and null says that
    the mode does not have a figure. The metadata has the schema's name and the command."""
    about = {"schema": comparison.schema_, "command": comparison.command, "started": comparison.started}
    columns = {
        name: pa.array(values) if name in KEYS else pa.array(values, pa.float64())
        for name, values in columns_of(comparison).items()
    }
    table = pa.table(columns).replace_schema_metadata(about)
    file = io.BytesIO()
    parquet.write_table(table, file)
    return file.getvalue()
