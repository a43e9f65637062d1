"""`ps.files`: files of other kinds than penstock knows, and how files with a protocol are read."""

from penstock.data.functions.reads_file import reads_file as reads_file
from penstock.formats.file_format import FileFormat as FileFormat
from penstock.formats.opening import open_file as open_file
from penstock.formats.registry import register_format as register_format
from penstock.formats.remote.file_cache import cache_remote_files as cache_remote_files
