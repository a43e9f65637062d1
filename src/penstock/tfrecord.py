"""`ps.tfrecord`: parts of TFRecord files beyond plain examples, which `ps.parse_example` reads."""

from penstock.formats.records.ragged_feature import RaggedFeature as RaggedFeature
from penstock.formats.records.sequence_example import parse_sequence_example as parse_sequence_example
