"""`python -m nereus.metrics > docs/metrics.md`: the document that is committed, so that a change of the metrics is seen."""

from __future__ import annotations

import sys

from nereus.metrics.table import document

sys.stdout.write(document())
