"""Is a quantised model what the algebra says, layer by layer, and how near to the float one?

compare.py    validate(model, quantised, batches), of any model
layers.py     what is gathered of a layer; folds.py what a norm in front was divided by
report.py     the findings and their thresholds
text.py       perplexity and KL divergence of a language model on a text
targets.py    what `scaled-mm validate` is pointed at
"""

from .compare import validate
from .report import Thresholds, ValidationReport
from .text import TextReport, perplexity
from .text import windows_of as windows_of

__all__ = ["TextReport", "Thresholds", "ValidationReport", "perplexity", "validate"]
