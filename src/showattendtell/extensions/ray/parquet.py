"""Captions as a Parquet file."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, get_type_hints

from showattendtell.errors import UserError
from showattendtell.results.rows import CaptionRow, OutputFormat, row_file
from showattendtell.runtime.files import write_errors

GROUP = 1024
"""Number of rows that are written together."""


class ParquetFile(OutputFormat):
    """The rows as `captions.parquet`. It is complete when it is closed.

    Raises:
        UserError: PyArrow is not installed.
    """

    def __init__(self, folder: Path):
        try:
            import pyarrow.parquet
        except ImportError:
            raise UserError("formats=[parquet] needs PyArrow; run pip install 'showattendtell[ray]'") from None
        self._pyarrow: Any = pyarrow
        types = {str: pyarrow.string(), float: pyarrow.float64(), bool: pyarrow.bool_()}
        columns = {name: types[kind] for name, kind in get_type_hints(CaptionRow).items()}
        self._schema = pyarrow.schema(columns)
        self._rows = list[dict[str, Any]]()
        self._path = row_file(folder, "parquet")

    @cached_property
    def _writer(self) -> Any:
        return self._pyarrow.parquet.ParquetWriter(self._path, self._schema)

    def write(self, rows: Sequence[CaptionRow]) -> None:
        names = [row.file.encode(errors="backslashreplace").decode() for row in rows]
        self._rows += [row._replace(file=name)._asdict() for row, name in zip(rows, names, strict=True)]
        if len(self._rows) >= GROUP:
            self._flush()

    def close(self) -> None:
        self._flush()
        with write_errors(self._path):
            self._writer.close()

    def _flush(self) -> None:
        with write_errors(self._path):
            self._writer.write_table(self._pyarrow.Table.from_pylist(self._rows, self._schema))
        self._rows.clear()
