"""`ps.testing`: checks that every dataset must pass, for penstock's own operators and for your pipelines."""

from penstock.testing.conformance import assert_same_elements as assert_same_elements
from penstock.testing.conformance import check_conformance as check_conformance
from penstock.testing.conformance import check_service as check_service
